package snapshot

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// body is a webhook with these features and subscriptions.
func body(features, subscriptions string) string {
	return `{"type":"TenantProvisioningChange","payload":{"tenant":{"id":1,"code":"acme","account":{"id":2,"contacts":[{"email":"jo@example.com"}]}},` +
		`"change":{"features":[` + features + `],"subscriptions":[` + subscriptions + `]}}}`
}

func features(f string) string      { return body(f, "") }
func subscriptions(s string) string { return body("", s) }

// sub is a subscription as the service documents it, with other members replaced.
func sub(members ...string) string {
	s := []string{
		`"id":7`, `"state":"trial"`, `"start_date":"2025-01-01"`, `"end_date":"2026-01-01"`, `"trial_start_date":null`, `"trial_end_date":null`,
		`"plan":{"code":"basic","name":"Basic"}`, `"product":{"code":"mail","name":"Mailing"}`, `"features":[]`,
	}
	for _, m := range members {
		name, _, _ := strings.Cut(m, ":")
		i := slices.IndexFunc(s, func(old string) bool { return strings.HasPrefix(old, name+":") })
		if i < 0 {
			s = append(s, m)
		} else {
			s[i] = m
		}
	}
	return "{" + strings.Join(s, ",") + "}"
}

// crm is a subscription to another product.
func crm(members ...string) string {
	return sub(append([]string{`"id":8`, `"product":{"code":"crm","name":"CRM"}`}, members...)...)
}

const (
	users5  = `{"code":"users","name":"Users","quantity":5}`
	users10 = `{"code":"users","name":"Users","quantity":10}`
	users   = `{"code":"users","name":"Users","quantity":null}`
	sso     = `{"code":"sso","name":"SSO","quantity":null}`
)

var cases = []struct {
	name, previous, next string
	want                 []string
}{
	{"the same", features(users5), features(users5), nil},
	{"null for what was missing", features(`{"code":"users"}`), features(`{"code":"users","value":null,"quantity":null,"name":null},null`), []string{payloadChanged}},
	{"missing for what was null", subscriptions(sub(`"price_list":null`, `"end_date":null`)), strings.Replace(subscriptions(sub()), `"end_date":"2026-01-01",`, "", 1), []string{payloadChanged}},
	{"an end where there was none", subscriptions(sub(`"end_date":null`)), subscriptions(sub()), []string{"subscription end none → 2026-01-01"}},
	{"lists that are null", features(users5), `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":null,"subscriptions":null}}}`, []string{featuresUnknown}},
	{"another quantity", features(users5), features(users10), []string{"users 5 → 10"}},
	{"no limit any more", features(users5), features(users), []string{"users 5 → unlimited"}},
	{"a limit", features(users), features(users5), []string{"users unlimited → 5"}},
	{"a limit where none was given", features(`{"code":"users"}`), features(users5), []string{"users unlimited → 5"}},
	{"down to nothing", features(users5), features(`{"code":"users","quantity":0}`), []string{"users 5 → 0"}},
	{"the same number", features(users5), features(`{"code":"users","name":"Users","quantity":5.0}`), []string{payloadChanged}},
	{"a number beyond int64", features(users5), features(`{"code":"users","quantity":99999999999999999999}`), []string{"users 5 → 9007199254740991"}},
	{"added", features(users5), features(users5 + "," + sso), []string{"+ sso"}},
	{"added with a limit", features(sso), features(sso + "," + users5), []string{"+ users (5)"}},
	{"added with a value", features(""), features(`{"code":"sso","value":"saml"},{"code":"mb","quantity":1,"value":"x"}`), []string{`+ sso (value "saml")`, `+ mb (1, value "x")`}},
	{"removed", features(users5 + "," + sso), features(users5), []string{"- sso"}},
	{"another value", features(`{"code":"sso","value":"a"}`), features(`{"code":"sso","value":"b"}`), []string{`sso: value "a" → "b"`}},
	{"an empty value is none", features(`{"code":"sso","value":""}`), features(`{"code":"sso"}`), []string{payloadChanged}},
	{"in another order", features(users5 + "," + sso), features(sso + "," + users10), []string{"users 5 → 10"}},
	{"changed, added, removed", features(`{"code":"a"},{"code":"b"},` + users5), features(`{"code":"z"},{"code":"y"},` + users10),
		[]string{"users 5 → 10", "+ z", "+ y", "- a", "- b"}},
	{"the same code twice", features(users5 + "," + users5), features(users5 + "," + users10 + "," + users), []string{"users 5 → unlimited"}},
	{"one of the same code gone", features(users5 + "," + sso + "," + users10), features(users5 + "," + sso), []string{"users 10 → 5"}},
	{"without a code", features(`{"name":"Single sign-on"}`), features(``), []string{payloadChanged}},

	{"first snapshot", "", body(users5+","+sso, sub()), []string{"+ users (5)", "+ sso", "+ subscription Mailing (trial)"}},
	{"first and empty", "", body("", ""), nil},

	{"state", subscriptions(sub()), subscriptions(sub(`"state":"active"`)), []string{"subscription trial → active"}},
	{"one of several", subscriptions(sub() + "," + crm()), subscriptions(sub(`"state":"active"`) + "," + crm()),
		[]string{"subscription Mailing: trial → active"}},
	{"another product", subscriptions(sub()), subscriptions(sub() + "," + crm()), []string{"+ subscription CRM (trial)"}},
	{"a product less", subscriptions(sub() + "," + crm()), subscriptions(crm()), []string{"- subscription Mailing (trial)"}},
	{"dates", subscriptions(sub()), subscriptions(sub(`"start_date":"2025-02-01"`, `"end_date":"2027-01-01"`, `"trial_end_date":"2025-02-01"`)),
		[]string{"subscription start 2025-01-01 → 2025-02-01", "subscription end 2026-01-01 → 2027-01-01", "subscription trial end none → 2025-02-01"}},
	{"plan", subscriptions(sub()), subscriptions(sub(`"plan":{"code":"pro","name":"Pro"}`)), []string{"subscription plan Basic → Pro"}},
	{"plan of the same name", subscriptions(sub()), subscriptions(sub(`"plan":{"code":"basic2","name":"Basic"}`)), []string{payloadChanged}},
	{"plan without a code", subscriptions(sub(`"plan":{"code":null,"name":"Basic"}`)), subscriptions(sub(`"plan":{"code":null,"name":"Pro"}`)), []string{"subscription plan Basic → Pro"}},
	{"price list", subscriptions(sub()), subscriptions(sub(`"price_list":{"code":"eur","name":"Euro"}`)), []string{"subscription price list none → Euro"}},
	{"product", subscriptions(sub()), subscriptions(sub(`"product":{"code":"crm","name":"CRM"}`)), []string{"subscription product Mailing → CRM"}},

	{"by product, without ids", subscriptions(sub(`"id":null`) + "," + crm(`"id":null`)), subscriptions(crm(`"id":null`, `"state":"active"`) + "," + sub(`"id":null`)),
		[]string{"subscription CRM: trial → active"}},
	{"by product, where ids begin", subscriptions(sub(`"id":null`)), subscriptions(sub(`"state":"active"`)), []string{"subscription trial → active"}},
	{"by plan", subscriptions(`{"state":"trial","plan":{"code":"a"}},{"state":"trial","plan":{"code":"b"}}`), subscriptions(`{"state":"active","plan":{"code":"b"}},{"state":"trial","plan":{"code":"a"}}`),
		[]string{"subscription b: trial → active"}},
	{"the only one", subscriptions(`{"state":"trial","plan":{"code":"a"}}`), subscriptions(`{"state":"trial","plan":{"code":"b"}}`), []string{"subscription plan a → b"}},
	{"renewed", subscriptions(sub(`"state":"canceled"`)), subscriptions(sub(`"id":9`, `"state":"active"`)),
		[]string{"subscription canceled → active"}},
	{"another product, without ids", subscriptions(sub(`"id":null`)), subscriptions(sub(`"id":null`, `"product":{"code":"crm","name":"CRM"}`)),
		[]string{"subscription product Mailing → CRM"}},
	{"a product twice", subscriptions(sub() + "," + sub(`"id":8`)), subscriptions(sub() + "," + sub(`"id":8`, `"state":"active"`)),
		[]string{"subscription Mailing: trial → active"}},
	{"known by id alone", subscriptions(`{"id":1,"state":"a"},{"id":2}`), subscriptions(`{"id":1,"state":"b"},{"id":2}`), []string{"subscription #1: a → b"}},
	{"known by nothing", subscriptions(`{"state":"a"},{"state":"b"}`), subscriptions(`{"state":"a"}`), []string{"- subscription (b)"}},
	{"known by name", subscriptions(`{"state":"a","plan":{"name":"A"}},{"state":"a","plan":{"name":"B"}}`), subscriptions(`{"state":"b","plan":{"code":null,"name":"B"}},{"state":"a","plan":{"name":"A"}}`),
		[]string{"subscription B: a → b"}},

	{"the subscription's features are the tenant's", body(users5, sub(`"features":[`+users5+`]`)), body(users10, sub(`"features":[`+users10+`]`)), []string{"users 5 → 10"}},
	{"the subscription's features alone", body("", sub(`"features":[`+users5+`]`)), body("", sub(`"features":[`+users10+`]`)), []string{payloadChanged}},

	{"contacts", body(users5, ""), strings.Replace(body(users5, ""), "jo@", "al@", 1), []string{payloadChanged}},
	{"members in another order", `{"type":"T","payload":{"change":{}}}`, `{ "payload":{"change":{}}, "type":"T" }`, []string{payloadChanged}},
	{"names in another case", `{"payload":{"change":{"Features":[` + users5 + `]}}}`, `{"payload":{"change":{"Features":[` + users10 + `]}}}`, []string{payloadChanged}},
	{"features customised", `{"payload":{"change":{"features":{"users":5}}}}`, `{"payload":{"change":{"features":{"users":6}}}}`, []string{payloadChanged}},
	{"recognised only now", `{"payload":{"users":5}}`, features(users5), []string{"+ users (5)"}},
	{"not recognised any more", features(users5), `{"payload":{"users":5}}`, []string{featuresUnknown}},
	{"customised from the start", "", `{"payload":{"users":5}}`, nil},
	{"members of other types", features(`{"code":{"email":"jo@example.com"}},{"code":"a","quantity":[1]},5,null`), features(`{"code":"a","quantity":true}`), []string{payloadChanged}},
	{"a feature that cannot be read", features(users5), features(`{"code":"users","quantity":"5"}`), []string{featuresUnknown}},
	{"its features cannot be read before and after", body(`5`, sub()), body(`5`, sub(`"state":"active"`)), []string{"subscription trial → active"}},
	{"not JSON", `{"payload"`, `{"payload":`, []string{payloadChanged}},
	{"not JSON from the start", "", `{`, nil},
	{"a name twice", features(users5), features(`{"code":"users","quantity":5,"quantity":null}`), []string{featuresUnknown}},
	{"two values", `{} {}`, `{} {} {}`, []string{payloadChanged}},
	{"null", `null`, `null`, nil},
	{"what a terminal would act on", features(""), features(`{"code":"a\u001b[2J\u009b1m\u202e\n"}`), []string{`+ a\u001b[2J\u009b1m\u202e\u000a`}},
}

func TestBetween(t *testing.T) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := Between([]byte(tc.previous), []byte(tc.next)); !slices.Equal(got, tc.want) {
				t.Errorf("\n got %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestTooMuchToRead(t *testing.T) {
	var f, s strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&f, `,{"code":"f%d"}`, i)
		s.WriteString(`,{}`)
	}
	got := Between(nil, []byte(features(f.String()[1:])))
	if len(got) != maxWords+1 || got[0] != "+ f0" || got[maxWords] != "and 39900 more" {
		t.Errorf("%d words, the last %q", len(got), got[len(got)-1])
	}
	many := []byte(subscriptions(s.String()[1:]))
	none := []byte(subscriptions(""))
	for _, got := range [][]string{Between(none, many), Between(many, none)} {
		if len(got) != maxWords+1 || got[maxWords] != "and 39900 more" {
			t.Errorf("40,000 subscriptions: %d words, the last %q", len(got), got[len(got)-1])
		}
	}
	long := []byte(features(`{"code":"` + strings.Repeat("é", 127) + `"}`))
	if got := Between(nil, long); utf8.RuneCountInString(got[0]) != min(maxShown, 127)+len("+ ") {
		t.Errorf("a long code: %q", got)
	}
}

// Whatever the bodies are, the words are always the same, each in one line, and nothing changes from a body to itself.
func FuzzBetween(f *testing.F) {
	for _, tc := range cases {
		f.Add([]byte(tc.previous), []byte(tc.next))
	}
	f.Fuzz(func(t *testing.T, previous, next []byte) {
		words := Between(previous, next)
		if again := Between(previous, next); !slices.Equal(words, again) {
			t.Errorf("%q, then %q", words, again)
		}
		for _, line := range words {
			if strings.ContainsFunc(line, func(c rune) bool { return !unicode.IsPrint(c) }) {
				t.Errorf("%q", line)
			}
		}
		if words := Between(next, next); len(next) > 0 && words != nil {
			t.Errorf("against itself: %q", words)
		}
	})
}
