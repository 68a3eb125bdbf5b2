package content

import (
	_ "embed"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// documented is a webhook with all that the billing service documents.
//
//go:embed testdata/documented.json
var documented string

// snapshot is a small webhook of a tenant; what tells two of them apart is name.
func snapshot(tenant, name string) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q},"change":{"features":[{"code":%q}]}}}`, tenant, name)
}

// TestFaults is also where the wording is seen.
func TestFaults(t *testing.T) {
	with := func(old, new string) string {
		if !strings.Contains(documented, old) {
			t.Fatalf("no %s in the documented webhook", old)
		}
		return strings.Replace(documented, old, new, 1)
	}
	tests := []struct {
		body string
		want []string // "path message"
	}{
		{documented, nil},
		{snapshot("acme", "A"), nil},
		{with(`"id":4711`, `"id":"4711"`), nil},
		{with(`"billing_day":1`, `"billing_day":"last"`), nil},
		{with(`"value":""`, `"value":2.5`), nil},
		{with(`"value":""`, `"value":true`), nil},
		{with(`"quantity":25`, `"quantity":25,"plan":{"code":"pro","name":"Pro"},"price_list":{"code":null}`), nil},
		{with(`2025-12-31`, `soon`), nil},
		{with(`"quantity":25`, `"quantity":1.0`), nil},
		{with(`"quantity":25`, `"quantity":1e2`), nil},
		{with(`"quantity":25`, `"quantity":-123456789012345678901234567890`), nil},
		{with(`"code":"pro"`, `"code":null`), nil},
		{with(`"trial_start_date":null`, `"trial_start_date":"2024-02-29"`), nil},
		{with(`"id":4711`, `"id":4711,"further":{"fields":[]}`), nil},
		{with(`"state":"active"`, `"state":"whatever"`), nil},
		{with(`"end_date":"2025-12-31"`, `"end_date":null`), nil}, // a subscription without an end
		{with(`"price_list":{"code":"eur","name":"Euro"}`, `"price_list":null`), nil},
		{with(`"features":[
{"code":"users"`, `"features":[null,
{"code":"users"`), nil},

		{`[]`, []string{" must be an object, not an array"}},
		{`"text"`, []string{" must be an object, not a string"}},
		{`null`, []string{" must be an object, not null"}},
		{`{}`, []string{"/payload is missing", "/type is missing"}},
		{`{"type":5,"payload":{}}`, []string{"/payload/change is missing", "/payload/tenant is missing", "/type must be a string, not a number"}},
		{`{"type":"TenantProvisioningChange","payload":{"tenant":{},"change":{}}}`, []string{"/payload/tenant/code is missing"}},
		{`{"type":"TenantProvisioningChange","payload":{"Tenant":{"code":"a"},"change":{}}}`, []string{"/payload/tenant is missing"}},
		{`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":""},"change":null}}`, []string{
			"/payload/change must be an object, not null", "/payload/tenant/code must not be empty"}},
		{`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":7},"change":{"features":{},"subscriptions":[1]}}}`, []string{
			"/payload/change/features must be an array or null, not an object",
			"/payload/tenant/code must be a string, not a number"}},
		{with(`"id":4711`, `"id":[]`), []string{"/payload/tenant/id must be a boolean or a number or a string or null, not an array"}},
		{with(`"quantity":25`, `"quantity":2.5`), []string{"/payload/change/features/0/quantity must be an integer or null, not a fraction"}},
		{with(`"quantity":25`, `"quantity":"25"`), []string{"/payload/change/features/0/quantity must be an integer or null, not a string"}},
		{with(`"code":"pro"`, `"code":1`), []string{"/payload/change/subscriptions/0/plan/code must be a string or null, not a number"}},
		{with("TenantProvisioningChange", "InvoiceCreated"), []string{`/type is "InvoiceCreated"; accepted here: TenantProvisioningChange`}},
		{with("TenantProvisioningChange", "tenantProvisioningChange"), []string{`/type is "tenantProvisioningChange"; accepted here: TenantProvisioningChange`}},
	}
	r := rules(t, "", TenantProvisioningChange)
	for _, tt := range tests {
		if faults := lines(r.Faults(parse(t, tt.body))); !slices.Equal(faults, tt.want) {
			t.Errorf("%.80s…: got\n\t%s\nwant\n\t%s", tt.body, strings.Join(faults, "\n\t"), strings.Join(tt.want, "\n\t"))
		}
	}
}

// TestWhatIsTyped takes the documented webhook apart: wherever something stands that usher reads, something of another
// kind is refused, at that place. Everywhere else anything passes.
func TestWhatIsTyped(t *testing.T) {
	v := rules(t, "", "*")
	root := decode(t, documented)
	typed := regexp.MustCompile(`^(|/type|/payload|/payload/tenant|/payload/tenant/platform|/payload/change|` +
		`.*/(code|id|billing_day|value|quantity|features|features/\d+))$`)
	checked := make(map[bool]int)
	var walk func(path string, value any, set func(any))
	walk = func(path string, value any, set func(any)) {
		var wrong any = []any{}
		switch value := value.(type) {
		case map[string]any:
			for name, member := range value {
				walk(path+"/"+name, member, func(x any) { value[name] = x })
			}
		case []any:
			wrong = map[string]any{}
			for i, item := range value {
				walk(path+"/"+strconv.Itoa(i), item, func(x any) { value[i] = x })
			}
		}
		set(wrong)
		faults, want := v.Faults(root), typed.MatchString(path)
		if want && (len(faults) != 1 || faults[0].Path != path) || !want && len(faults) != 0 {
			t.Errorf("with %v at %q: %v", wrong, path, faults)
		}
		set(value)
		checked[want]++
	}
	walk("", root, func(x any) { root = x })
	if checked[true] < 30 || checked[false] < 20 || len(v.Faults(root)) != 0 {
		t.Errorf("%v places, in the end %v", checked, v.Faults(root))
	}
}

// TestNullCountsAsAbsent puts null wherever something stands in the documented webhook:
// it passes, as if nothing stood there, but for the five members that are required.
func TestNullCountsAsAbsent(t *testing.T) {
	v := rules(t, "", "*")
	required := []string{"", "/type", "/payload", "/payload/tenant", "/payload/tenant/code", "/payload/change"}
	root := decode(t, documented)
	refused, checked := 0, 0
	var walk func(path string, value any, set func(any))
	walk = func(path string, value any, set func(any)) {
		switch value := value.(type) {
		case map[string]any:
			for name, member := range value {
				walk(path+"/"+name, member, func(x any) { value[name] = x })
			}
		case []any:
			for i, item := range value {
				walk(path+"/"+strconv.Itoa(i), item, func(x any) { value[i] = x })
			}
		}
		set(nil)
		switch faults := v.Faults(root); {
		case slices.Contains(required, path):
			if refused++; len(faults) != 1 || faults[0].Path != path {
				t.Errorf("null at %s: %v", path, faults)
			}
		case len(faults) > 0:
			t.Errorf("null at %s: %v", path, faults)
		}
		set(value)
		checked++
	}
	walk("", root, func(x any) { root = x })
	if refused != len(required) || checked < 70 {
		t.Errorf("%d of %d places refused", refused, checked)
	}
}

// rules are those for types, with a schema of the user's own unless that is empty.
func rules(t testing.TB, schema string, types ...string) *Rules {
	t.Helper()
	var own []byte
	if schema != "" {
		own = []byte(schema)
	}
	r, err := NewRules(types, own)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func parse(t testing.TB, body string) any {
	t.Helper()
	value, fault := Parse([]byte(body))
	if fault != nil {
		t.Fatalf("%s %s", fault.Path, fault.Message)
	}
	return value
}

func lines(faults []Fault) []string {
	var out []string
	for _, f := range faults {
		out = append(out, f.Path+" "+f.Message)
	}
	return out
}

func TestTypes(t *testing.T) {
	other, broken := `{"type":"Other","payload":7}`, `{"type":"TenantProvisioningChange","payload":7}`
	for _, tt := range []struct {
		types  []string
		schema string
		body   string
		passes bool
	}{
		{[]string{TenantProvisioningChange}, "", other, false},
		{[]string{"Other"}, "", other, true},
		{[]string{"Other"}, "", broken, false},
		{[]string{"Other"}, "", documented, false},
		{[]string{"Other", TenantProvisioningChange}, "", documented, true},
		{[]string{"Other", TenantProvisioningChange}, "", broken, false},
		{[]string{"*"}, "", other, true},
		{[]string{"*"}, "", broken, false},
		{[]string{"*"}, "", `{"payload":7}`, false},
		{[]string{"*"}, "", `[]`, false},
		{[]string{TenantProvisioningChange}, `{"required":["payload"]}`, broken, true},
		{[]string{TenantProvisioningChange}, `{"required":["payload"]}`, other, false},
		{[]string{TenantProvisioningChange}, `{"required":["payload"]}`, `{"payload":7}`, false},
		{[]string{TenantProvisioningChange}, `{"required":["payload"]}`, `[]`, false},
		{[]string{"*"}, `{"required":["payload"]}`, other, true},
		{[]string{"*"}, `{"required":["payload"]}`, `{"payload":7}`, true},
		{[]string{"*"}, `{"required":["payload"]}`, `{"type":"Other"}`, false},
		{[]string{"*"}, `true`, `[]`, true},
		{[]string{"*"}, `false`, documented, false},
	} {
		if faults := rules(t, tt.schema, tt.types...).Faults(parse(t, tt.body)); (len(faults) == 0) != tt.passes {
			t.Errorf("types %q, schema %s, %.40s: %q", tt.types, tt.schema, tt.body, lines(faults))
		}
	}
}

func TestOwnSchemaFaults(t *testing.T) {
	for schema, want := range map[string]string{
		`{"additionalProperties":false,"properties":{"type":{}}}`: "/payload is not expected here",
		`{"required":[""]}`:                          "/ is missing",
		`{"properties":{"payload":false}}`:           "/payload is not expected here",
		`{"properties":{"type":{"enum":["A","B"]}}}`: "/type must be one of 'A', 'B'",
		`{"properties":{"payload":{"const":1}}}`:     "/payload must be 1",
		`{"properties":{"payload":{"properties":{"tenant":{"properties":{"id":{"maximum":9}}}}}}}`:             `/payload/tenant/id does not fit "maximum" in the schema`,
		`{"properties":{"payload":{"properties":{"tenant":{"properties":{"id":{"minimum":5000}}}}}}}`:          `/payload/tenant/id does not fit "minimum" in the schema`,
		`{"properties":{"payload":{"properties":{"tenant":{"properties":{"id":{"exclusiveMaximum":9}}}}}}}`:    `/payload/tenant/id does not fit "exclusiveMaximum" in the schema`,
		`{"properties":{"payload":{"properties":{"tenant":{"properties":{"id":{"exclusiveMinimum":5000}}}}}}}`: `/payload/tenant/id does not fit "exclusiveMinimum" in the schema`,
		`{"properties":{"payload":{"properties":{"tenant":{"properties":{"id":{"multipleOf":2.5}}}}}}}`:        `/payload/tenant/id does not fit "multipleOf" in the schema`,
		`{"dependentRequired":{"type":["id","at"]}}`:                                                           "/at is missing|/id is missing",
		`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"type":["id"]}}`:                 "/id is missing",
		`{"properties":{"type":{"minLength":100}}}`:                                                            `/type does not fit "minLength" in the schema`,
		`{"properties":{"type":{"pattern":"^x"}}}`:                                                             `/type does not fit "pattern" in the schema`,
		`{"properties":{"type":{"format":"email"}}}`:                                                           "/type is not a valid email",
		`{"properties":{"type":{"not":{"type":"string"}}}}`:                                                    "/type does not fit the schema",
		`{"$ref":"#/$defs/a","$defs":{"a":{"required":["b/c"]}}}`:                                              "/b~1c is missing",
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"array"}`:                                 " must be an array, not an object",
		`{"properties":{"type":{"anyOf":[{"type":"null"},{"type":"number"}]}}}`: `/type does not fit "anyOf" in the schema` +
			"|/type must be a number, not a string|/type must be null, not a string",
		`{"properties":{"type":{"oneOf":[{"type":"string"},{"minLength":1}]}}}`: `/type does not fit "oneOf" in the schema`,
	} {
		faults := rules(t, schema, "*").Faults(parse(t, documented))
		if got := strings.Join(lines(faults), "|"); got != want {
			t.Errorf("%s: got %q, want %q", schema, got, want)
		}
	}
}

func TestBadSchemas(t *testing.T) {
	for schema, want := range map[string][]string{
		"{\n \"a\": }": {"not JSON", "line 2, column 7"},
		`{"properties":{"a":{"type":"string","type":"null"}}}`: {"/properties/a/type is in the object twice"},
		``:                                    {"it is empty"},
		`{"type":"strnig"}`:                   {"not a JSON Schema: /type ", "'string'"},
		`{"properties":{"a":{"minimum":""}}}`: {"/properties/a/minimum must be a number, not a string"},
		`{"$ref":"https://example.com/s"}`:    {"https://example.com/s", "not loaded", "$defs"},
		`{"$ref":"file:///etc/passwd"}`:       {"file:///etc/passwd", "not loaded"},
		`{"$ref":"other.json"}`:               {"other.json", "not loaded"},
		`{"$ref":"#/$defs/missing"}`:          {"#/$defs/missing", "not found"},
		`{"$schema":"https://example.com/x"}`: {"https://example.com/x", "not loaded"},
		`{"pattern":"(?=x)"}`:                 {"/pattern is not a valid regex"},
	} {
		_, err := NewRules([]string{"*"}, []byte(schema))
		if err == nil {
			t.Errorf("%s: passes", schema)
			continue
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than a line: %q", schema, err)
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", schema, err, part)
			}
		}
	}
}

// Nor may it make the report expensive: each of many faults below it has it in its path.
func TestManyFaultsBelowALongName(t *testing.T) {
	r := rules(t, `{"additionalProperties":{"items":{"type":"string"}}}`, "*")
	value := parse(t, `{"`+strings.Repeat("x", 400<<10)+`":[`+strings.Repeat("1,", 999)+`1]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	faults := r.Faults(value)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; len(faults) == 0 || took > 20<<20 {
		t.Errorf("%d faults took %d MiB", len(faults), took>>20)
	}
}

// Codes are keys of a database's index, so they have a length, and no character that its text cannot have.
func TestCodesThatNobodyCanStore(t *testing.T) {
	all, err := NewRules([]string{"*"}, []byte(`true`))
	if err != nil {
		t.Fatal(err)
	}
	builtIn, err := NewRules([]string{TenantProvisioningChange}, nil)
	if err != nil {
		t.Fatal(err)
	}
	long, longest := strings.Repeat("x", 256), strings.Repeat("x", 255)
	body := func(typ, tenant, platform, feature string) string {
		return fmt.Sprintf(`{"type":%q,"payload":{"tenant":{"code":"%s","platform":{"code":"%s"}},"change":{"features":[{"code":"a"},{"code":"%s"}]}}}`, typ, tenant, platform, feature)
	}
	const tpc, zero = TenantProvisioningChange, `a\u0000b`
	for name, tc := range map[string]struct{ body, path, message string }{
		"all at the most":    {body(tpc, longest, longest, longest), "", ""},
		"a long tenant":      {body(tpc, long, "", ""), "/payload/tenant/code", "must have at most 255 bytes"},
		"a long platform":    {body(tpc, "t", long, ""), "/payload/tenant/platform/code", "must have at most 255 bytes"},
		"a long feature":     {body(tpc, "t", "p", long), "/payload/change/features/1/code", "must have at most 255 bytes"},
		"zero in a tenant":   {body(tpc, zero, "", ""), "/payload/tenant/code", "must not contain the character U+0000"},
		"zero in a platform": {body(tpc, "t", zero, ""), "/payload/tenant/platform/code", "must not contain the character U+0000"},
		"zero in a feature":  {body(tpc, "t", "p", zero), "/payload/change/features/1/code", "must not contain the character U+0000"},
	} {
		value, fault := Parse([]byte(tc.body))
		if fault != nil {
			t.Fatal(fault)
		}
		for _, r := range []*Rules{all, builtIn} {
			got := r.Faults(value)
			if tc.path == "" && got != nil || tc.path != "" && (len(got) != 1 || got[0] != Fault{Path: tc.path, Message: tc.message}) {
				t.Errorf("%s: %v", name, got)
			}
		}
		if _, _, certain := CertainTenant(value); certain == strings.HasPrefix(tc.path, "/payload/tenant") {
			t.Errorf("%s: certain is %v", name, certain)
		}
	}
	value, _ := Parse([]byte(body(long, "t", "", "")))
	if got := all.Faults(value); len(got) != 1 || got[0].Path != "/type" {
		t.Errorf("a long type: %v", got)
	}
}
