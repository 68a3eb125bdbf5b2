package content

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParse(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct {
		body string
		want string // a part of what is wrong; empty: nothing
	}{
		{`{}`, ""},
		{" \r\n\t{ \"a\" : [ 1 , { } , [ ] ] , \"b\" : null } \n", ""},
		{`{"a":1,"A":2,"á":3}`, ""},
		{`"\u00e9\ud83d\ude00\\u\"\/"`, ""},
		{`[0, -1, 1.5e3, 1E+400, 1e-400, 123456789012345678901234567890]`, ""},
		{deep(maxDepth), ""},
		{``, " is empty"},
		{" \n", " is empty"},
		{`{`, " is not JSON: unexpected end"},
		{"{\n  \"a\": 1,\n}", "line 3, column 1"},
		{`{} {}`, "after top-level value"},
		{`{}x`, "after top-level value"},
		{"\ufeff{}", " is not JSON"},
		{`{'a':1}`, " is not JSON"},
		{`{"a":01}`, " is not JSON"},
		{`{"a":NaN}`, " is not JSON"},
		{"{\"a\":\"\n\"}", " is not JSON"},
		{"{\n\"a\":\"b\xff\"}", "not valid UTF-8"},
		{"\"\xed\xa0\x80\"", "not valid UTF-8"},
		{`{"a":1,"b":2,"a":1}`, "/a is in the object twice"},
		{`{"code":1,"\u0063ode":2}`, "/code is in the object twice"},
		{`{"x":[{},{"a/b~c":{"":0,"":0}}]}`, "/x/1/a~1b~0c/ is in the object twice"},
		{`"\ufffd\\ufffd\uFFFD\\\ufffd` + "\uFFFD" + `"`, ""},
		{`{"a":"\ufffd\ud83d"}`, "/a has half a character"},
		{`{"a":"\\ufffd\ud83d"}`, "/a has half a character"},
		{`{"a":"\ud83d"}`, "/a has half a character"},
		{`{"a":["\ude00\ud83d"]}`, "/a/0 has half a character"},
		{`{"a":"\ud83dx\ude00"}`, "/a has half a character"},
		{`{"a":"\ud83d\n"}`, "/a has half a character"},
		{`{"\ud83d":1}`, "has half a character"},
		{deep(maxDepth + 1), "is nested more than 64 deep"},
		{strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), "is nested more than 64 deep"},
		{`{"a":1e401}`, "/a is a number too large or too long"},
		{`{"a":-1E-401}`, "/a is a number too large or too long"},
		{`{"a":1e99999999999999999999}`, "/a is a number too large or too long"},
		{`{"a":` + strings.Repeat("9", 401) + `}`, "/a is a number too large or too long"},
	}
	for _, tt := range tests {
		value, fault := Parse([]byte(tt.body))
		switch {
		case tt.want == "":
			if fault != nil {
				t.Errorf("%.60s: %v", tt.body, *fault)
			} else if want := decode(t, tt.body); !reflect.DeepEqual(value, want) {
				t.Errorf("%.60s: got %v, want %v", tt.body, value, want)
			}
		case fault == nil:
			t.Errorf("%.60s: passes, want %q", tt.body, tt.want)
		case !strings.Contains(fault.Path+" "+fault.Message, tt.want):
			t.Errorf("%.60s: got %v, want %q", tt.body, *fault, tt.want)
		}
	}
}

// decode is what encoding/json makes of it.
func decode(t *testing.T, body string) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// What a body can cost is bounded: by its values where they are small, by its size
// where it is large.
func TestManyValues(t *testing.T) {
	list := func(n, size int) []byte {
		body := "[" + strings.Repeat("1,", n-2) + "1]"
		return append([]byte(body), strings.Repeat(" ", max(0, size-len(body)))...)
	}
	for _, tt := range []struct {
		name   string
		body   []byte
		passes bool
	}{
		{"as many as there may be", list(maxValues, 0), true},
		{"one more", list(maxValues+1, 0), false},
		{"as many as there are ten bytes", list(200_000, 2_000_000), true},
		{"one more than that", list(200_001, 2_000_000), false},
	} {
		if _, fault := Parse(tt.body); (fault == nil) != tt.passes {
			t.Errorf("%s: %v", tt.name, fault)
		}
	}
}

func FuzzBody(f *testing.F) {
	for _, s := range []string{documented, snapshot("a", "b"), `{"a":1,"a":2}`, `{"a":"\ud800"}`, `[1e400,-0.0,1E-2]`, "\xff", "{} {}", `"\\\""`,
		`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":""},"change":{"features":[{"quantity":1.5}]}}}`,
		`{"type":"Other","payload":null}`, strings.Repeat("[", 70), `{"":{"":[{"":""}]}}`} {
		f.Add([]byte(s))
	}
	builtIn := rules(f, "", "*")
	picky := rules(f, `{"type":"object","minProperties":1,"maxProperties":3,"properties":{"type":{"enum":["A",1,null]}},
		"additionalProperties":{"anyOf":[{"type":"number","minimum":0,"multipleOf":0.5},{"type":"array","uniqueItems":true,"maxItems":3}]}}`, "*")
	f.Fuzz(func(t *testing.T, body []byte) {
		value, fault := Parse(body)
		if fault != nil {
			if fault.Message == "" || !utf8.ValidString(fault.Path+fault.Message) {
				t.Errorf("refused with %q", *fault)
			}
			return
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Fatal("what is not JSON passes")
		}
		if want := decode(t, string(body)); !reflect.DeepEqual(value, want) {
			t.Errorf("read as %v, by encoding/json as %v", value, want)
		}
		for _, r := range []*Rules{builtIn, picky} {
			if first, second := r.Faults(value), r.Faults(value); !slices.Equal(first, second) {
				t.Errorf("faults differ: %v and %v", first, second)
			}
		}
		if _, tenant, _ := CertainTenant(value); TypeOf(value) == TenantProvisioningChange && len(builtIn.Faults(value)) == 0 && tenant == "" {
			t.Error("validated, and without a tenant")
		}
	})
}
