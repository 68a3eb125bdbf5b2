package entitlements

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// webhook is one with this as its change.
func webhook(change string) []byte {
	return fmt.Appendf(nil, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme","platform":{"code":"eu"}},"change":%s}}`, change)
}

// listing is the snapshot of a webhook that lists these.
func listing(t testing.TB, features ...string) Snapshot {
	t.Helper()
	s, err := Parse(webhook(`{"features":[` + strings.Join(features, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The contract's rules for what a list of features says, each in a row.
func TestSnapshot(t *testing.T) {
	const huge = "123456789012345678901234567890"
	for _, tc := range []struct {
		name, features string
		want           []Feature
	}{
		{"documented", `{"code":"users","name":"Users","value":"","quantity":25}`, []Feature{{"users", "Users", "", 25}}},
		{"value", `{"code":"tier","name":"Tier","value":"gold","quantity":null}`, []Feature{{"tier", "Tier", "gold", Unlimited}}},
		{"none", ``, nil},
		{"in its order", `{"code":"b"},{"code":"a"}`, []Feature{{"b", "", "", Unlimited}, {"a", "", "", Unlimited}}},

		{"quantity null", `{"code":"f","quantity":null}`, []Feature{{"f", "", "", Unlimited}}},
		{"quantity missing", `{"code":"f"}`, []Feature{{"f", "", "", Unlimited}}},
		{"quantity 0", `{"code":"f","quantity":0}`, []Feature{{"f", "", "", 0}}},
		{"quantity -0", `{"code":"f","quantity":-0}`, []Feature{{"f", "", "", 0}}},
		{"quantity negative", `{"code":"f","quantity":-3}`, []Feature{{"f", "", "", 0}}},
		{"quantity -1, which is no limit to some", `{"code":"f","quantity":-1}`, []Feature{{"f", "", "", 0}}},
		{"quantity negative and huge", `{"code":"f","quantity":-` + huge + `}`, []Feature{{"f", "", "", 0}}},
		{"quantity at the most", `{"code":"f","quantity":9007199254740991}`, []Feature{{"f", "", "", MaxLimit}}},
		{"quantity just below", `{"code":"f","quantity":9007199254740990}`, []Feature{{"f", "", "", MaxLimit - 1}}},
		{"quantity just above", `{"code":"f","quantity":9007199254740992}`, []Feature{{"f", "", "", MaxLimit}}},
		{"quantity at the end of int64", `{"code":"f","quantity":9223372036854775807}`, []Feature{{"f", "", "", MaxLimit}}},
		{"quantity beyond int64", `{"code":"f","quantity":9223372036854775808}`, []Feature{{"f", "", "", MaxLimit}}},
		{"quantity huge", `{"code":"f","quantity":` + huge + `}`, []Feature{{"f", "", "", MaxLimit}}},
		{"quantity 1e400", `{"code":"f","quantity":1e400}`, []Feature{{"f", "", "", MaxLimit}}},
		{"quantity -1e400", `{"code":"f","quantity":-1e400}`, []Feature{{"f", "", "", 0}}},
		{"quantity 1e3", `{"code":"f","quantity":1e3}`, []Feature{{"f", "", "", 1000}}},
		{"quantity 25E+1", `{"code":"f","quantity":25E+1}`, []Feature{{"f", "", "", 250}}},
		{"quantity 2500e-2", `{"code":"f","quantity":2500e-2}`, []Feature{{"f", "", "", 25}}},
		{"quantity 25.0", `{"code":"f","quantity":25.0}`, []Feature{{"f", "", "", 25}}},
		{"quantity with .0, at the most", `{"code":"f","quantity":9007199254740991.0}`, []Feature{{"f", "", "", MaxLimit}}},
		{"quantity with .0, just below", `{"code":"f","quantity":9007199254740990.0}`, []Feature{{"f", "", "", MaxLimit - 1}}},

		{"twice: the largest", `{"code":"f","quantity":5},{"code":"g"},{"code":"f","quantity":7},{"code":"f","quantity":6}`, []Feature{{"f", "", "", 7}, {"g", "", "", Unlimited}}},
		{"twice: null first", `{"code":"f","quantity":null},{"code":"f","quantity":7}`, []Feature{{"f", "", "", Unlimited}}},
		{"twice: null last", `{"code":"f","quantity":7},{"code":"f"}`, []Feature{{"f", "", "", Unlimited}}},
		{"twice: negative and 0", `{"code":"f","quantity":-7},{"code":"f","quantity":0}`, []Feature{{"f", "", "", 0}}},
		{"twice: the first value that is not empty", `{"code":"f","value":""},{"code":"f","value":"a"},{"code":"f","value":"b"}`, []Feature{{"f", "", "a", Unlimited}}},
		{"twice: the first name that is not empty", `{"code":"f"},{"code":"f","name":"A"},{"code":"f","name":"B"}`, []Feature{{"f", "A", "", Unlimited}}},

		{"no code", `{"name":"Users","quantity":5},{"code":"f"}`, []Feature{{"f", "", "", Unlimited}}},
		{"code null", `{"code":null,"quantity":5},{"code":"f"}`, []Feature{{"f", "", "", Unlimited}}},
		{"code empty", `{"code":"","quantity":5},{"code":"f"}`, []Feature{{"f", "", "", Unlimited}}},
		{"name and value null", `{"code":"f","name":null,"value":null,"quantity":1}`, []Feature{{"f", "", "", 1}}},

		{"exact names: Code is none", `{"Code":"f"},{"CODE":"g"}`, nil},
		{"exact names: Quantity is none", `{"code":"f","Quantity":99,"quantity":1}`, []Feature{{"f", "", "", 1}}},
		{"exact codes", `{"code":"Users","quantity":1},{"code":"users","quantity":2},{"code":"users ","quantity":3}`, []Feature{{"Users", "", "", 1}, {"users", "", "", 2}, {"users ", "", "", 3}}},
		{"codes of all kinds", `{"code":"a/b"},{"code":"Nutzer für alle"},{"code":"機能"},{"code":"a\u0000b"}`, []Feature{{"a/b", "", "", Unlimited}, {"Nutzer für alle", "", "", Unlimited}, {"機能", "", "", Unlimited}, {"a\x00b", "", "", Unlimited}}},

		// With a schema of the user's own. Nothing of it is to the tenant's favour.
		{"not an object", `null,5,"users",["users"],{"code":"f"}`, []Feature{{"f", "", "", Unlimited}}},
		{"code not a string", `{"code":5},{"code":["f"]}`, nil},
		{"quantity a text", `{"code":"f","quantity":"25"}`, []Feature{{"f", "", "", 25}}},
		{"quantity no number", `{"code":"f","quantity":"unlimited"},{"code":"g","quantity":true},{"code":"h","quantity":{}},{"code":"i","quantity":""}`,
			[]Feature{{"f", "", "", 0}, {"g", "", "", 0}, {"h", "", "", 0}, {"i", "", "", 0}}},
		{"quantity that only Go reads", `{"code":"f","quantity":"inf"},{"code":"g","quantity":"NaN"},{"code":"h","quantity":"0x10"},{"code":"i","quantity":"1_0"}`,
			[]Feature{{"f", "", "", 0}, {"g", "", "", 0}, {"h", "", "", 0}, {"i", "", "", 0}}},
		{"quantity with a fraction", `{"code":"f","quantity":2.9},{"code":"g","quantity":-0.5}`, []Feature{{"f", "", "", 2}, {"g", "", "", 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := listing(t, tc.features)
			if got := slices.Collect(s.Features()); !slices.Equal(got, tc.want) || !s.Known() || s.Len() != len(tc.want) {
				t.Fatalf("%+v, known: %t; want %+v", got, s.Known(), tc.want)
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
		`{}`:                              false,
		`{"features":null}`:               false,
		`{"Features":[{"code":"users"}]}`: false,
		`{"features":{"code":"users"}}`:   false, // with a schema of the user's own
		`{"features":"users"}`:            false,
		`null`:                            false,
		`[]`:                              false,
		`{"subscriptions":[{"features":[{"code":"users"}]}]}`: false, // only change.features counts
	} {
		s, err := Parse(webhook(change))
		if _, ok := s.Feature("users"); err != nil || s.Known() != known || ok {
			t.Errorf("%s: known: %t, users: %t, %v", change, s.Known(), ok, err)
		}
	}
}

// What the gate never lets through, and a damaged record may hold.
func TestParseRefuses(t *testing.T) {
	for _, body := range []string{"", "{", "nonsense", string(webhook("{}")) + "{}", "\x00"} {
		if s, err := Parse([]byte(body)); err == nil || s.Known() {
			t.Errorf("%q: %v", body, s)
		}
	}
	for _, body := range []string{"null", "5", "[]", `{"payload":5}`, `{"payload":{"change":[{"features":[{"code":"a"}]}]}}`} {
		if s, err := Parse([]byte(body)); err != nil || s.Known() {
			t.Errorf("%q: %v %v", body, s, err)
		}
	}
}

// What stays of a webhook for years answers as the webhook did, and says nothing else.
func TestEssence(t *testing.T) {
	for body, want := range map[string]string{
		`{"payload":{"tenant":{"account":{"contacts":[{"email":"ada@example.com"}]}},"change":{"note":"x","features":[` +
			`{"code":"users","quantity":25,"owner":"ada@example.com"},{"code":"sso","name":"SSO","value":"saml","quantity":null},{"code":"users","quantity":30}]}}}`: `{"payload":{"change":{"features":[{"code":"users","name":"","value":"","quantity":30},{"code":"sso","name":"SSO","value":"saml","quantity":null}]}}}`,
		`{"payload":{"change":{"features":[]}}}`:   `{"payload":{"change":{"features":[]}}}`,
		`{"payload":{"change":{"features":null}}}`: `{}`,
		`not JSON`: `{}`,
	} {
		if got := string(Essence([]byte(body))); got != want {
			t.Errorf("%s\nbecomes %s,\nwant    %s", body, got, want)
		}
	}
}

// Whatever comes, a snapshot holds to its own rules, and its essence is read as it was.
func FuzzParse(f *testing.F) {
	f.Add(webhook(`{"features":[{"code":"users","name":"Users","quantity":25},{"code":"sso","value":"saml","quantity":null}]}`))
	f.Add(webhook(`{"features":[{"code":"a","quantity":1e3},{"code":"a","quantity":-1},{"code":"","quantity":9e99},{"quantity":2.50e1}]}`))
	f.Add(webhook(`{"features":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := Parse(body)
		if err != nil {
			return
		}
		features := slices.Collect(s.Features())
		seen := make(map[string]bool)
		for _, f := range features {
			if f.Code == "" || seen[f.Code] || f.Limit < Unlimited || f.Limit > MaxLimit {
				t.Fatalf("%+v in %q", f, body)
			}
			seen[f.Code] = true
			if got, ok := s.Feature(f.Code); got != f || !ok {
				t.Fatalf("%+v alone is %+v", f, got)
			}
		}
		if !s.Known() && len(features) > 0 {
			t.Fatalf("not known, but %+v", features)
		}
		again, err := Parse(Essence(body))
		if err != nil || again.Known() != s.Known() || !slices.Equal(slices.Collect(again.Features()), features) {
			t.Fatalf("of its essence %v is read, %v", again, err)
		}
	})
}
