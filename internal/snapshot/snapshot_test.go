package snapshot

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// webhook is one with this as its change.
func webhook(change string) []byte {
	return fmt.Appendf(nil, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme","platform":{"code":"eu"}},"change":%s}}`, change)
}

// The contract's rules for what a list of features says, each in a row.
func TestSnapshot(t *testing.T) {
	const huge = "123456789012345678901234567890"
	for _, tc := range []struct {
		name, features string
		want           []Feature
	}{
		{"documented", `{"code":"users","name":"Users","value":"","quantity":25}`, []Feature{{"users", "Users", 25, ""}}},
		{"value", `{"code":"tier","name":"Tier","value":"gold","quantity":null}`, []Feature{{"tier", "Tier", Unlimited, "gold"}}},
		{"none", ``, nil},
		{"in its order", `{"code":"b"},{"code":"a"}`, []Feature{{"b", "", Unlimited, ""}, {"a", "", Unlimited, ""}}},

		{"quantity null", `{"code":"f","quantity":null}`, []Feature{{"f", "", Unlimited, ""}}},
		{"quantity missing", `{"code":"f"}`, []Feature{{"f", "", Unlimited, ""}}},
		{"quantity 0", `{"code":"f","quantity":0}`, []Feature{{"f", "", 0, ""}}},
		{"quantity -0", `{"code":"f","quantity":-0}`, []Feature{{"f", "", 0, ""}}},
		{"quantity negative", `{"code":"f","quantity":-3}`, []Feature{{"f", "", 0, ""}}},
		{"quantity -1, which is no limit to some", `{"code":"f","quantity":-1}`, []Feature{{"f", "", 0, ""}}},
		{"quantity negative and huge", `{"code":"f","quantity":-` + huge + `}`, []Feature{{"f", "", 0, ""}}},
		{"quantity at the most", `{"code":"f","quantity":9007199254740991}`, []Feature{{"f", "", MaxLimit, ""}}},
		{"quantity just below", `{"code":"f","quantity":9007199254740990}`, []Feature{{"f", "", MaxLimit - 1, ""}}},
		{"quantity just above", `{"code":"f","quantity":9007199254740992}`, []Feature{{"f", "", MaxLimit, ""}}},
		{"quantity at the end of int64", `{"code":"f","quantity":9223372036854775807}`, []Feature{{"f", "", MaxLimit, ""}}},
		{"quantity beyond int64", `{"code":"f","quantity":9223372036854775808}`, []Feature{{"f", "", MaxLimit, ""}}},
		{"quantity huge", `{"code":"f","quantity":` + huge + `}`, []Feature{{"f", "", MaxLimit, ""}}},
		{"quantity 1e400", `{"code":"f","quantity":1e400}`, []Feature{{"f", "", MaxLimit, ""}}},
		{"quantity -1e400", `{"code":"f","quantity":-1e400}`, []Feature{{"f", "", 0, ""}}},
		{"quantity 1e3", `{"code":"f","quantity":1e3}`, []Feature{{"f", "", 1000, ""}}},
		{"quantity 25E+1", `{"code":"f","quantity":25E+1}`, []Feature{{"f", "", 250, ""}}},
		{"quantity 2500e-2", `{"code":"f","quantity":2500e-2}`, []Feature{{"f", "", 25, ""}}},
		{"quantity 25.0", `{"code":"f","quantity":25.0}`, []Feature{{"f", "", 25, ""}}},
		{"quantity with .0, at the most", `{"code":"f","quantity":9007199254740991.0}`, []Feature{{"f", "", MaxLimit, ""}}},
		{"quantity with .0, just below", `{"code":"f","quantity":9007199254740990.0}`, []Feature{{"f", "", MaxLimit - 1, ""}}},

		{"twice: the largest", `{"code":"f","quantity":5},{"code":"g"},{"code":"f","quantity":7},{"code":"f","quantity":6}`, []Feature{{"f", "", 7, ""}, {"g", "", Unlimited, ""}}},
		{"twice: null first", `{"code":"f","quantity":null},{"code":"f","quantity":7}`, []Feature{{"f", "", Unlimited, ""}}},
		{"twice: null last", `{"code":"f","quantity":7},{"code":"f"}`, []Feature{{"f", "", Unlimited, ""}}},
		{"twice: negative and 0", `{"code":"f","quantity":-7},{"code":"f","quantity":0}`, []Feature{{"f", "", 0, ""}}},
		{"twice: the first value that is not empty", `{"code":"f","value":""},{"code":"f","value":"a"},{"code":"f","value":"b"}`, []Feature{{"f", "", Unlimited, "a"}}},
		{"twice: the first name that is not empty", `{"code":"f"},{"code":"f","name":"A"},{"code":"f","name":"B"}`, []Feature{{"f", "A", Unlimited, ""}}},

		{"no code", `{"name":"Users","quantity":5},{"code":"f"}`, []Feature{{"f", "", Unlimited, ""}}},
		{"code null", `{"code":null,"quantity":5},{"code":"f"}`, []Feature{{"f", "", Unlimited, ""}}},
		{"code empty", `{"code":"","quantity":5},{"code":"f"}`, []Feature{{"f", "", Unlimited, ""}}},
		{"name and value null", `{"code":"f","name":null,"value":null,"quantity":1}`, []Feature{{"f", "", 1, ""}}},

		{"exact names: Code is none", `{"Code":"f"},{"CODE":"g"}`, nil},
		{"exact names: Quantity is none", `{"code":"f","Quantity":99,"quantity":1}`, []Feature{{"f", "", 1, ""}}},
		{"exact codes", `{"code":"Users","quantity":1},{"code":"users","quantity":2},{"code":"users ","quantity":3}`, []Feature{{"Users", "", 1, ""}, {"users", "", 2, ""}, {"users ", "", 3, ""}}},
		{"codes of all kinds", `{"code":"a/b"},{"code":"Nutzer für alle"},{"code":"機能"}`, []Feature{{"a/b", "", Unlimited, ""}, {"Nutzer für alle", "", Unlimited, ""}, {"機能", "", Unlimited, ""}}},
		{"a zero character in a name and a value", `{"code":"f","name":"a\u0000b","value":"\u0000"}`, []Feature{{"f", "a\ufffdb", Unlimited, "\ufffd"}}},
		{"a code of 255 bytes", `{"code":"` + strings.Repeat("x", 255) + `"}`, []Feature{{strings.Repeat("x", 255), "", Unlimited, ""}}},

		{"null is no feature", `null,{"code":"f"}`, []Feature{{"f", "", Unlimited, ""}}},
		{"a number as a code", `{"code":5},{"code":"5","quantity":2}`, []Feature{{"5", "", Unlimited, ""}}},
		{"other types that can be read", `{"code":"f","name":["F"],"value":5},{"code":"g","value":true}`, []Feature{{"f", "", Unlimited, "5"}, {"g", "", Unlimited, "true"}}},
		{"quantity with a fraction", `{"code":"f","quantity":2.9},{"code":"g","quantity":-0.5}`, []Feature{{"f", "", 2, ""}, {"g", "", 0, ""}}},
		{"no code, and the rest cannot be read", `{"quantity":"5"},{"code":"f"}`, []Feature{{"f", "", Unlimited, ""}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Read(webhook(`{"features":[` + tc.features + `]}`))
			if !slices.Equal(s.Features, tc.want) || !s.Known {
				t.Fatalf("%+v, want %+v", s, tc.want)
			}
			for _, f := range tc.want {
				if got, ok := s.Feature(f.Code); got != f || !ok {
					t.Errorf("%q alone is %+v, %t", f.Code, got, ok)
				}
			}
			for _, code := range []string{"", "Users", "USERS", "F", "f ", "use"} {
				listed := slices.ContainsFunc(tc.want, func(f Feature) bool { return f.Code == code })
				if _, ok := s.Feature(code); ok != listed {
					t.Errorf("%q is enabled: %t", code, ok)
				}
			}
		})
	}
}

// Without a list nobody knows what the tenant may use; an empty one says: nothing.
func TestNoList(t *testing.T) {
	for change, known := range map[string]bool{
		`{"features":[]}`:                 true,
		`{"features":[null]}`:             true,
		`{}`:                              false,
		`{"features":null}`:               false,
		`{"Features":[{"code":"users"}]}`: false,
		`{"features":{"code":"users"}}`:   false, // with a schema of the user's own
		`{"features":"users"}`:            false,
		`null`:                            false,
		`[]`:                              false,
		`{"subscriptions":[{"features":[{"code":"users"}]}]}`: false, // only change.features counts
	} {
		s := Read(webhook(change))
		if _, ok := s.Feature("users"); s.Known != known || ok {
			t.Errorf("%s: %+v", change, s)
		}
	}
}

// One feature that cannot be read makes all of them unknown: a quantity of "5" is not "no limit", and the
// feature is not denied either.
func TestUnreadableFeature(t *testing.T) {
	for _, feature := range []string{
		`5`, `"users"`, `["users"]`, `true`,
		`{"code":true}`, `{"code":["users"]}`, `{"code":{}}`,
		`{"code":"users","quantity":"5"}`, `{"code":"users","quantity":""}`, `{"code":"users","quantity":"unlimited"}`,
		`{"code":"users","quantity":true}`, `{"code":"users","quantity":[]}`, `{"code":"users","quantity":{}}`,
		`{"code":"users","value":{}}`, `{"code":"users","value":["a"]}`,
		`{"code":"users","quantity":5,"quantity":null}`, `{"code":"users","code":"sso"}`,
		`{"code":"users","quantity":1e999}`, // more than the gate lets through
	} {
		s := Read(webhook(`{"features":[{"code":"a"},` + feature + `,{"code":"b"}]}`))
		if s.Known || len(s.Features) > 0 || s.Encode() != nil {
			t.Errorf("%s: %+v", feature, s)
		}
	}
}

// Listed means enabled: no date and no state of a subscription decides anything.
func TestDatesAndStatesDecideNothing(t *testing.T) {
	for _, subscriptions := range []string{
		`[]`, `null`, `5`,
		`[{"state":"cancelled","start_date":"2000-01-01","end_date":"2000-12-31"}]`,
		`[{"state":"draft","start_date":"2999-01-01","trial_end_date":"2000-01-01"}]`,
		`[{"state":"active","features":[{"code":"users","quantity":1}]}]`,
	} {
		s := Read(webhook(`{"subscriptions":` + subscriptions + `,"features":[{"code":"users","quantity":25,"state":"off","end_date":"2000-01-01"}]}`))
		if f, ok := s.Feature("users"); !ok || f.Limit != 25 {
			t.Errorf("%s: %+v", subscriptions, s)
		}
	}
}

func TestRead(t *testing.T) {
	got := Read([]byte(`{"payload":{"tenant":{"name":"Acme GmbH"},"change":{
		"features":[{"code":"users","name":"Users","quantity":5},{"code":"sso","quantity":null,"value":"saml"}],
		"subscriptions":[{"id":7,"state":"trial","plan":{"code":"s","name":"Standard"},"product":{"code":"crm","name":"CRM"},"start_date":"2026-01-05",
			"end_date":"2027-01-04","trial_start_date":"2026-01-05","trial_end_date":"2026-02-04","price_list":{"code":"eur"},"features":[{"code":"users","quantity":5}]},null,{}]}}}`))
	want := Snapshot{
		Name: "Acme GmbH", Known: true, Features: []Feature{{"users", "Users", 5, ""}, {"sso", "", Unlimited, "saml"}},
		Subscriptions: []Subscription{{
			ID: "7", Label: "CRM", State: "trial", Product: Coded{"crm", "CRM"}, Plan: Coded{"s", "Standard"}, PriceList: Coded{Code: "eur"},
			Start: "2026-01-05", End: "2027-01-04", TrialStart: "2026-01-05", TrialEnd: "2026-02-04",
		}, {}},
	}
	if got.Change = nil; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// What stays of a webhook for years answers as the webhook did, and says nothing else.
func TestEncode(t *testing.T) {
	for body, want := range map[string]string{
		`{"payload":{"tenant":{"name":"Ada","account":{"contacts":[{"email":"ada@example.com"}]}},"change":{"note":"x","features":[` +
			`{"code":"users","quantity":25,"owner":"ada@example.com"},{"code":"<sso>","name":"SSO","value":"saml","quantity":null},{"code":"users","quantity":30}]}}}`: `[{"code":"users","limit":30},{"code":"<sso>","name":"SSO","limit":null,"value":"saml"}]`,
		`{"payload":{"change":{"features":[]}}}`:   `[]`,
		`{"payload":{"change":{"features":null}}}`: ``,
		`not JSON`: ``,
	} {
		if got := string(Read([]byte(body)).Encode()); got != want {
			t.Errorf("%s\nbecomes %s,\nwant    %s", body, got, want)
		}
	}
}

func TestDecode(t *testing.T) {
	for features, want := range map[string]Snapshot{
		``:   {},
		`[]`: {Known: true, Features: []Feature{}},
		`[{"code":"users","limit":30},{"code":"sso","name":"SSO","limit":null,"value":"saml"}]`: {Known: true, Features: []Feature{{"users", "", 30, ""}, {"sso", "SSO", Unlimited, "saml"}}},
		// what is damaged is not in the tenant's favour
		`[{"code":"users"}]`: {Known: true, Features: []Feature{{"users", "", 0, ""}}},
	} {
		if got, err := Decode([]byte(features)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", features, got, err)
		}
	}
	for _, damaged := range []string{`[`, `null`, `{}`, `5`, `[5]`, `[{"code":5}]`, `[{"code":"a","limit":"5"}]`, `[{"code":"a","limit":-1}]`, `[{"code":"a","limit":9007199254740992}]`, `[{"code":"a","limit":1.5}]`} {
		if s, err := Decode([]byte(damaged)); err == nil || s.Known {
			t.Errorf("%s: %+v", damaged, s)
		}
	}
}

// sound reports whether a snapshot follows its own rules, and is read again from what is kept of it.
func sound(t *testing.T, s Snapshot) {
	t.Helper()
	seen := make(map[string]bool)
	for _, f := range s.Features {
		if f.Code == "" || seen[f.Code] || f.Limit < Unlimited || f.Limit > MaxLimit {
			t.Fatalf("%+v in %+v", f, s)
		}
		seen[f.Code] = true
	}
	if !s.Known && len(s.Features) > 0 {
		t.Fatalf("not known, but %+v", s.Features)
	}
	again, err := Decode(s.Encode())
	if err != nil || again.Known != s.Known || !slices.Equal(again.Features, s.Features) {
		t.Fatalf("%+v is read again as %+v, %v", s, again, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(webhook(`{"features":[{"code":"users","name":"Users","quantity":25},{"code":"sso","value":"saml","quantity":null}]}`))
	f.Add(webhook(`{"features":[{"code":"a","quantity":1e3},{"code":"a","quantity":-1},{"code":"","quantity":9e99},{"quantity":2.50e1}]}`))
	f.Add(webhook(`{"features":null,"subscriptions":[{"id":7,"features":[{"code":5}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) { sound(t, Read(body)) })
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`[{"code":"users","limit":30},{"code":"sso","name":"SSO","limit":null,"value":"saml"}]`))
	f.Add([]byte(`[{"code":"a","limit":1},{"code":"a","limit":null},{"Code":"\ud800"},{}]`))
	f.Fuzz(func(t *testing.T, features []byte) {
		if s, err := Decode(features); err == nil {
			sound(t, s)
		}
	})
}

func TestWould(t *testing.T) {
	odd := `{"code":"users","quantity":"5"}`
	for _, tc := range []struct{ name, previous, next, want string }{
		{"added", features(users5), features(users5 + "," + sso), "would have added sso"},
		{"first", "", features(users5 + "," + sso), "would have added users (5), sso"},
		{"all at once", features(users5 + "," + sso), body(users10+`,{"code":"api"}`, sub()), "would have added api, subscription Mailing (trial); removed sso; changed users 5 → 10"},
		{"nothing", features(users5), features(users5), "would have changed no feature and no subscription"},
		{"no list", features(users5), `{"type":"TenantProvisioningChange"}`, ""},
		{"a feature that cannot be read", features(sso), features(sso + "," + odd), ""},
		{"no JSON", features(sso), "{", ""},
	} {
		got := ""
		if words := Would([]byte(tc.previous), []byte(tc.next)); len(words) > 0 {
			got = words[0]
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
