package entitlements

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const flagURL = "/ofrep/v1/evaluate/flags"

// The complete answer for each flag.
func TestFlag(t *testing.T) {
	h := New(config(t))
	for _, tc := range []struct{ tenant, key, want string }{
		{"acme", "users", `{"key":"users","reason":"STATIC","value":true,"variant":"enabled"}`},
		{"acme", "users.limit", `{"key":"users.limit","reason":"STATIC","value":25,"variant":"limited"}`},
		{"acme", "users.value", `{"key":"users.value","reason":"STATIC","value":"","variant":"enabled"}`},
		{"acme", "sso", `{"key":"sso","reason":"STATIC","value":true,"variant":"enabled"}`},
		{"acme", "sso.limit", `{"key":"sso.limit","reason":"STATIC","value":9007199254740991,"variant":"unlimited"}`},
		{"acme", "sso.value", `{"key":"sso.value","reason":"STATIC","value":"saml","variant":"enabled"}`},
		{"acme", "none", `{"key":"none","reason":"STATIC","value":true,"variant":"enabled"}`},
		{"acme", "none.limit", `{"key":"none.limit","reason":"STATIC","value":0,"variant":"limited"}`},
		{"acme", "huge.limit", `{"key":"huge.limit","reason":"STATIC","value":9007199254740991,"variant":"limited"}`},
		{"acme", "other", `{"key":"other","reason":"STATIC","value":false,"variant":"denied"}`},
		{"acme", "other.limit", `{"key":"other.limit","reason":"STATIC","value":0,"variant":"denied"}`},
		{"acme", "other.value", `{"key":"other.value","reason":"STATIC","value":"","variant":"denied"}`},
		{"empty", "users", `{"key":"users","reason":"STATIC","value":false,"variant":"denied"}`},
		// The inbox could not be read.
		{"old", "users", `{"key":"users","reason":"STALE","value":true,"variant":"enabled"}`},
		{"old", "users.limit", `{"key":"users.limit","reason":"STALE","value":25,"variant":"limited"}`},
		// A feature with the whole key as its code comes first. Its own limit has one more suffix.
		{"acme", "a/b.limit", `{"key":"a/b.limit","reason":"STATIC","value":true,"variant":"enabled"}`},
		{"acme", "a%2Fb.limit", `{"key":"a/b.limit","reason":"STATIC","value":true,"variant":"enabled"}`},
		{"acme", "a/b.limit.limit", `{"key":"a/b.limit.limit","reason":"STATIC","value":3,"variant":"limited"}`},
		{"acme", "a/b", `{"key":"a/b","reason":"STATIC","value":false,"variant":"denied"}`},
		{"acme", "%E6%A9%9F%E8%83%BD.limit", `{"key":"機能.limit","reason":"STATIC","value":4,"variant":"limited"}`},
		{"acme", ".limit", `{"key":".limit","reason":"STATIC","value":false,"variant":"denied"}`},
		{"acme", "users.Limit", `{"key":"users.Limit","reason":"STATIC","value":false,"variant":"denied"}`},
	} {
		resp := ask(t, h, "POST", flagURL+"/"+tc.key, `{"context":{"targetingKey":"`+tc.tenant+`","unknown":{"attributes":[1]}},"more":1}`)
		if got := jsonOf(t, resp); resp.StatusCode != 200 || got != tc.want {
			t.Errorf("%s: %s %s, want %s", tc.key, resp.Status, got, tc.want)
		}
	}
}

// Errors as the protocol has them, for one flag and for all.
func TestFlagErrors(t *testing.T) {
	h := New(config(t))
	large := `{"context":{"targetingKey":"acme","x":"` + strings.Repeat("x", maxContext) + `"}}`
	for _, tc := range []struct {
		name, body string
		status     int // of one flag
		code       string
		all        int // of all flags; 0: the same
	}{
		{"fine", `{"context":{"targetingKey":"acme"}}`, 200, "", 0},
		{"platform named", `{"context":{"targetingKey":"twice","platform":"us"}}`, 200, "", 0},
		{"platform none", `{"context":{"targetingKey":"plain","platform":""}}`, 200, "", 0},
		{"platform null counts as absent", `{"context":{"targetingKey":"acme","platform":null}}`, 200, "", 0},

		{"unknown tenant", `{"context":{"targetingKey":"nobody"}}`, 404, "FLAG_NOT_FOUND", 200},
		{"unknown on that platform", `{"context":{"targetingKey":"acme","platform":"us"}}`, 404, "FLAG_NOT_FOUND", 200},
		{"unknown features", `{"context":{"targetingKey":"silent"}}`, 404, "FLAG_NOT_FOUND", 200},
		{"ambiguous", `{"context":{"targetingKey":"twice"}}`, 400, "INVALID_CONTEXT", 0},
		{"ambiguous, platform null", `{"context":{"targetingKey":"twice","platform":null}}`, 400, "INVALID_CONTEXT", 0},
		{"store fails", `{"context":{"targetingKey":"broken"}}`, 503, "GENERAL", 0},

		{"no context", `{}`, 400, "TARGETING_KEY_MISSING", 0},
		{"context null", `{"context":null}`, 400, "TARGETING_KEY_MISSING", 0},
		{"context empty", `{"context":{}}`, 400, "TARGETING_KEY_MISSING", 0},
		{"key null", `{"context":{"targetingKey":null}}`, 400, "TARGETING_KEY_MISSING", 0},
		{"key empty", `{"context":{"targetingKey":""}}`, 400, "TARGETING_KEY_MISSING", 0},
		{"exact names", `{"context":{"TargetingKey":"acme","targetingkey":"acme"}}`, 400, "TARGETING_KEY_MISSING", 0},
		{"exact names above", `{"Context":{"targetingKey":"acme"}}`, 400, "TARGETING_KEY_MISSING", 0},
		{"context a list", `{"context":["acme"]}`, 400, "INVALID_CONTEXT", 0},
		{"context a string", `{"context":"acme"}`, 400, "INVALID_CONTEXT", 0},
		{"key a number", `{"context":{"targetingKey":5}}`, 400, "INVALID_CONTEXT", 0},
		{"key a list", `{"context":{"targetingKey":["acme"]}}`, 400, "INVALID_CONTEXT", 0},
		{"platform a number", `{"context":{"targetingKey":"acme","platform":5}}`, 400, "INVALID_CONTEXT", 0},
		{"platform an object", `{"context":{"targetingKey":"acme","platform":{"code":"eu"}}}`, 400, "INVALID_CONTEXT", 0},
		{"key twice", `{"context":{"targetingKey":"nobody","targetingKey":"acme"}}`, 400, "PARSE_ERROR", 0},
		{"key twice, once escaped", `{"context":{"targetingKey":"nobody","targeting\u004bey":"acme"}}`, 400, "PARSE_ERROR", 0},
		{"platform twice", `{"context":{"targetingKey":"twice","platform":"eu","platform":"us"}}`, 400, "PARSE_ERROR", 0},
		{"context twice", `{"context":{"targetingKey":"nobody"},"context":{"targetingKey":"acme"}}`, 400, "PARSE_ERROR", 0},
		{"nothing", ``, 400, "PARSE_ERROR", 0},
		{"not JSON", `{"context":{"targetingKey":"acme"}`, 400, "PARSE_ERROR", 0},
		{"two values", `{"context":{"targetingKey":"acme"}}{}`, 400, "PARSE_ERROR", 0},
		{"a list", `[]`, 400, "PARSE_ERROR", 0},
		{"a string", `"acme"`, 400, "PARSE_ERROR", 0},
		{"not UTF-8", "{\"context\":{\"targetingKey\":\"acme\xff\"}}", 400, "PARSE_ERROR", 0},
		{"too large", large, 400, "PARSE_ERROR", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			one := ask(t, h, "POST", flagURL+"/users", tc.body)
			if code := errorCode(t, one); one.StatusCode != tc.status || code != tc.code {
				t.Errorf("one: %s %s, want %d %s", one.Status, code, tc.status, tc.code)
			}
			all := ask(t, h, "POST", flagURL, tc.body)
			status, code := tc.status, tc.code
			if tc.all != 0 {
				status, code = tc.all, ""
			}
			if got := errorCode(t, all); all.StatusCode != status || got != code {
				t.Errorf("all: %s %s, want %d %s", all.Status, got, status, code)
			}
			if (one.Header.Get("Retry-After") != "") != (tc.status == 503) || (all.Header.Get("Retry-After") != "") != (tc.status == 503) {
				t.Errorf("Retry-After: %q, %q", one.Header.Get("Retry-After"), all.Header.Get("Retry-After"))
			}
		})
	}
	resp := ask(t, h, "POST", flagURL+"/a/b", `{"context":{"targetingKey":"nobody"}}`)
	if got := jsonOf(t, resp); !strings.Contains(got, `"key":"a/b"`) {
		t.Errorf("no key: %s", got)
	}
	// a key that was not escaped
	for _, target := range []string{flagURL + "/users?", flagURL + "/users?x", flagURL + "?platform=eu"} {
		if resp := ask(t, h, "POST", target, `{"context":{"targetingKey":"acme"}}`); resp.StatusCode != 400 || errorCode(t, resp) != "PARSE_ERROR" {
			t.Errorf("%s: %s", target, resp.Status)
		}
	}
	for target, status := range map[string]int{flagURL + "/": 404, flagURL + "/%ff": 404, "/ofrep/v1/configuration": 404, "/ofrep/v1/evaluate//flags": 404} {
		if resp := ask(t, h, "POST", target, `{"context":{"targetingKey":"acme"}}`); resp.StatusCode != status || errorCode(t, resp) != "GENERAL" {
			t.Errorf("%s: %s", target, resp.Status)
		}
	}
}

// There are three flags for each feature. Each key occurs once, with the same answer as for that flag alone.
func TestFlags(t *testing.T) {
	h := New(config(t))
	s := listing(t, `{"code":"users","quantity":25}`, `{"code":"users.limit"}`, `{"code":"users.value","value":"v"}`, `{"code":"sso"}`)
	keys := make(map[string]bool)
	for _, flag := range (&Answer{Snapshot: s}).evaluateAll() {
		one, _ := (&Answer{Snapshot: s}).evaluate(flag.Key)
		if keys[flag.Key] || fmt.Sprintf("%#v", one) != fmt.Sprintf("%#v", flag) {
			t.Errorf("%#v, alone %#v, twice: %t", flag, one, keys[flag.Key])
		}
		keys[flag.Key] = true
	}
	if len(keys) != 10 {
		t.Errorf("%v", keys)
	}
	for tenant, want := range map[string]int{"acme": 18, "brücke": 3, "empty": 0, "nobody": 0, "silent": 0} {
		resp := ask(t, h, "POST", flagURL, `{"context":{"targetingKey":"`+tenant+`"}}`)
		raw := jsonOf(t, resp)
		var body struct{ Flags []flagBody }
		if err := json.Unmarshal([]byte(raw), &body); err != nil || body.Flags == nil || len(body.Flags) != want || resp.StatusCode != 200 {
			t.Errorf("%s: %s %s", tenant, resp.Status, raw)
		}
		for _, flag := range body.Flags {
			if flag.Reason != "STATIC" {
				t.Errorf("%+v", flag)
			}
		}
	}
}

// A caller that already has the flags gets a 304, one that has others gets the flags.
func TestFlagsETag(t *testing.T) {
	h := New(config(t))
	tagOf := func(tenant string) string {
		return ask(t, h, "POST", flagURL, `{"context":{"targetingKey":"`+tenant+`"}}`).Header.Get("ETag")
	}
	acme, empty, nobody := tagOf("acme"), tagOf("empty"), tagOf("nobody")
	if acme == "" || acme[0] != '"' || acme == empty || empty != nobody || acme != tagOf("acme") {
		t.Fatal(acme, empty, nobody)
	}
	for _, tc := range []struct {
		header string
		status int
	}{
		{"If-None-Match: " + acme, 304},
		{"If-None-Match: W/" + acme, 304},
		{`If-None-Match: "x", ` + acme, 304},
		{"If-None-Match: " + empty, 200},
		{"If-None-Match: " + strings.Trim(acme, `"`), 200},
		{"If-None-Match: ", 200},
		{"If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT", 200},
	} {
		resp := ask(t, h, "POST", flagURL, `{"context":{"targetingKey":"acme"}}`, tc.header)
		if body := jsonOf(t, resp); resp.StatusCode != tc.status || resp.Header.Get("ETag") != acme || (body == "") != (tc.status == 304) {
			t.Errorf("%s: %s %q", tc.header, resp.Status, body)
		}
	}
	for _, tenant := range []string{"twice", "broken"} { // an error is never "as you know it"
		resp := ask(t, h, "POST", flagURL, `{"context":{"targetingKey":"`+tenant+`"}}`, "If-None-Match: "+acme+", "+empty, "If-None-Match: *")
		if resp.StatusCode < 400 || resp.Header.Get("ETag") != "" {
			t.Errorf("%s: %s", tenant, resp.Status)
		}
	}
}
