package entitlements

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"usher/internal/guard"
	"usher/internal/snapshot"
)

// taken is the time at which the webhooks of these tests were taken in.
var taken = time.Date(2026, 5, 1, 12, 0, 0, 123456789, time.FixedZone("", 7200))

// shop is a store with these tenants:
//
//	acme (eu)      users: 25, sso: no limit, none: 0, huge: the most
//	brücke (eu), a/b (eu), "a b&c=d%2F+" (eu), .. (eu)    users: 1
//	twice (eu, us) users: 1 on eu, 2 on us
//	half (eu, us)  an empty list on eu, no list on us
//	plain (none), and plain (eu)   users: 5, users: 6
//	empty (eu)     an empty list
//	silent (eu)    no list
//	old (eu)       as acme, but stale
//	broken         a store that fails
func shop(t testing.TB) Lookup {
	var stored []snapshot.Stored
	put := func(platform, tenant string, s snapshot.Snapshot) {
		stored = append(stored, snapshot.Stored{Platform: platform, Tenant: tenant, Features: s.Encode(), Received: taken,
			Webhook: fmt.Sprintf("w-%s-%s", platform, tenant), Seq: int64(len(stored) + 1)})
	}
	acme := listing(t, `{"code":"users","name":"Users","quantity":25}`, `{"code":"sso","name":"Single <sign-on>","value":"saml"}`,
		`{"code":"none","quantity":0}`, `{"code":"huge","quantity":1e30}`, `{"code":"a/b.limit","quantity":3}`, `{"code":"機能","quantity":4}`)
	put("eu", "acme", acme)
	put("eu", "old", acme)
	for _, tenant := range []string{"brücke", "a/b", "a b&c=d%2F+", ".."} {
		put("eu", tenant, listing(t, `{"code":"users","quantity":1}`))
	}
	put("us", "twice", listing(t, `{"code":"users","quantity":2}`))
	put("eu", "twice", listing(t, `{"code":"users","quantity":1}`))
	put("eu", "half", listing(t))
	put("us", "half", snapshot.Snapshot{})
	put("", "plain", listing(t, `{"code":"users","quantity":5}`))
	put("eu", "plain", listing(t, `{"code":"users","quantity":6}`))
	put("eu", "empty", listing(t))
	put("eu", "silent", snapshot.Snapshot{})
	book := NewBook(func(_ context.Context, tenant string) (all []snapshot.Stored, _ error) {
		for _, s := range stored {
			if s.Tenant == tenant {
				all = append(all, s)
			}
		}
		return all, nil
	}, false)
	return func(ctx context.Context, tenant string, platform *string) (Answer, error) {
		if tenant == "broken" {
			return Answer{}, errors.New("open /var/lib/secret-path: input/output error")
		}
		a, err := book.Lookup(ctx, tenant, platform)
		if tenant == "old" {
			a.Stale = 1500 * time.Millisecond
		}
		return a, err
	}
}

// listing returns the snapshot of a webhook with these features.
func listing(t testing.TB, features ...string) snapshot.Snapshot {
	t.Helper()
	s := snapshot.Read([]byte(`{"payload":{"change":{"features":[` + strings.Join(features, ",") + `]}}}`))
	if !s.Known {
		t.Fatal("not known")
	}
	return s
}

func config(t testing.TB) Config {
	return Config{
		Lookup: shop(t), Hosts: guard.NewHosts("127.0.0.1:8070", nil, false),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// ask sends a request and returns the answer. The target is parsed as net/http's server does.
func ask(t testing.TB, h http.Handler, method, target, body string, header ...string) *http.Response {
	t.Helper()
	raw := method + " " + target + " HTTP/1.1\r\nHost: 127.0.0.1:8070\r\n"
	if body != "" {
		raw += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	for _, line := range header {
		raw += line + "\r\n"
	}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw + "\r\n" + body)))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	resp := w.Result()
	if got := resp.Header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("%s %s: Cache-Control is %q", method, target, got)
	}
	return resp
}

// jsonOf returns the JSON of an answer with its names in order.
func jsonOf(t testing.TB, resp *http.Response) string {
	t.Helper()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) == 0 {
		return ""
	}
	var value any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&value); err != nil || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%q: %v, %s", raw, err, resp.Header.Get("Content-Type"))
	}
	again, _ := json.Marshal(value)
	return string(again)
}

// errorCode returns the error code of an answer, or nothing.
func errorCode(t testing.TB, resp *http.Response) (code string) {
	t.Helper()
	var body struct {
		Error struct{ Code, Message string }
		// OFREP's
		ErrorCode, ErrorDetails string
	}
	raw := jsonOf(t, resp)
	if raw == "" {
		return ""
	}
	if err := json.Unmarshal([]byte(raw), &body); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(raw, "secret-path") {
		t.Errorf("it tells of the store's insides: %s", raw)
	}
	if body.Error.Code != "" && body.Error.Message == "" || body.ErrorCode != "" && body.ErrorDetails == "" {
		t.Errorf("no message: %s", raw)
	}
	return body.Error.Code + body.ErrorCode
}

// The complete answer of each path.
func TestAnswers(t *testing.T) {
	h := New(config(t))
	const source = `"as_of":"2026-05-01T10:00:00.123456789Z"`
	for _, tc := range []struct{ target, want string }{
		{"/v1/entitlements/acme", `{` + source + `,"features":[` +
			`{"enabled":true,"feature":"users","limit":25,"name":"Users","value":""},` +
			`{"enabled":true,"feature":"sso","limit":null,"name":"Single \u003csign-on\u003e","value":"saml"},` +
			`{"enabled":true,"feature":"none","limit":0,"name":"","value":""},` +
			`{"enabled":true,"feature":"huge","limit":9007199254740991,"name":"","value":""},` +
			`{"enabled":true,"feature":"a/b.limit","limit":3,"name":"","value":""},` +
			`{"enabled":true,"feature":"機能","limit":4,"name":"","value":""}` +
			`],"platform":"eu","tenant":"acme","webhook":"w-eu-acme"}`},
		{"/v1/entitlements/empty", `{` + source + `,"features":[],"platform":"eu","tenant":"empty","webhook":"w-eu-empty"}`},
		{"/v1/entitlements/plain?platform=", `{` + source + `,"features":[{"enabled":true,"feature":"users","limit":5,"name":"","value":""}],"platform":"","tenant":"plain","webhook":"w--plain"}`},
		{"/v1/entitlements/acme/users", `{` + source + `,"enabled":true,"feature":"users","limit":25,"name":"Users","platform":"eu","tenant":"acme","value":"","webhook":"w-eu-acme"}`},
		{"/v1/entitlements/acme/sso", `{` + source + `,"enabled":true,"feature":"sso","limit":null,"name":"Single \u003csign-on\u003e","platform":"eu","tenant":"acme","value":"saml","webhook":"w-eu-acme"}`},
		{"/v1/entitlements/acme/other", `{` + source + `,"enabled":false,"feature":"other","limit":0,"name":"","platform":"eu","tenant":"acme","value":"","webhook":"w-eu-acme"}`},
		{"/v1/entitlements/empty/users", `{` + source + `,"enabled":false,"feature":"users","limit":0,"name":"","platform":"eu","tenant":"empty","value":"","webhook":"w-eu-empty"}`},
	} {
		resp := ask(t, h, "GET", tc.target, "")
		if got := jsonOf(t, resp); resp.StatusCode != 200 || got != tc.want || resp.Header["Usher-Stale"] != nil {
			t.Errorf("%s: %s\n%s\nwant\n%s", tc.target, resp.Status, got, tc.want)
		}
	}
}

// The contract's errors, and which tenant and feature a path or a query names.
func TestTargets(t *testing.T) {
	h := New(config(t))
	for _, tc := range []struct {
		target string
		status int
		code   string
		limit  string // Usher-Limit, or the feature's limit
	}{
		{"/v1/entitlements/acme/users", 200, "", "25"},
		{"/v1/entitlements/nobody", 404, "TENANT_UNKNOWN", ""},
		{"/v1/entitlements/Acme/users", 404, "TENANT_UNKNOWN", ""},
		{"/v1/entitlements/acme%00/users", 404, "TENANT_UNKNOWN", ""},
		{"/v1/entitlements/silent", 404, "FEATURES_UNKNOWN", ""},
		{"/v1/entitlements/twice", 409, "AMBIGUOUS", ""},
		{"/v1/entitlements/twice/users?platform=eu", 200, "", "1"},
		{"/v1/entitlements/twice/users?platform=asia", 404, "TENANT_UNKNOWN", ""},
		{"/v1/entitlements/twice/users?platform=", 404, "TENANT_UNKNOWN", ""},
		{"/v1/entitlements/plain/users", 409, "AMBIGUOUS", ""},
		{"/v1/entitlements/plain/users?platform=", 200, "", "5"},
		{"/v1/entitlements/plain/users?platform", 200, "", "5"},
		{"/v1/entitlements/acme/users?platform=", 404, "TENANT_UNKNOWN", ""},
		{"/v1/entitlements/broken", 503, "NOT_READY", ""},

		{"/v1/entitlements/br%C3%BCcke/users", 200, "", "1"},
		{"/v1/entitlements/brücke/users", 200, "", "1"},                    // unescaped, as some send it
		{"/v1/entitlements/bru%CC%88cke/users", 404, "TENANT_UNKNOWN", ""}, // looks the same, and is not
		{"/v1/entitlements/acme/%E6%A9%9F%E8%83%BD", 200, "", "4"},
		{"/v1/entitlements/a%2Fb/users", 200, "", "1"},
		{"/v1/entitlements/a/b/users", 404, "NOT_FOUND", ""},
		{"/v1/entitlements/a%252Fb/users", 404, "TENANT_UNKNOWN", ""},    // escaped twice is another code
		{`/v1/entitlements/acme%2Fusers%2F"`, 404, "TENANT_UNKNOWN", ""}, // not acme: see sentPath
		{`/v1/entitlements/x%2F../acme"/users`, 404, "NOT_FOUND", ""},
		{"/v1/entitlements/a%20b&c=d%252F+/users", 200, "", "1"}, // + is no space in a path
		{"/v1/entitlements/acme/a%2Fb.limit", 200, "", "3"},
		{"/v1/entitlements/../users", 200, "", "1"}, // a code like any other
		{"/v1/entitlements/%2E%2E/users", 200, "", "1"},
		{"/v1/entitlements/acme%FF/users", 404, "NOT_FOUND", ""}, // no code is anything but UTF-8
		{"/v1/entitlements/acme;x=1/users", 404, "TENANT_UNKNOWN", ""},

		{"/v1/entitlements/acme/", 404, "NOT_FOUND", ""},
		{"/v1/entitlements/", 404, "NOT_FOUND", ""},
		{"/v1/entitlements//users", 404, "NOT_FOUND", ""},
		{"/v1/entitlements", 404, "NOT_FOUND", ""},
		{"//v1/entitlements/acme", 404, "NOT_FOUND", ""},
		{"/v1/../v1/entitlements/acme", 404, "NOT_FOUND", ""},
		{"/v1/%65ntitlements/acme", 404, "NOT_FOUND", ""},
		{"/v1/%63heck?tenant=acme&feature=users", 404, "NOT_FOUND", ""},
		{"/", 404, "NOT_FOUND", ""},
		{"/v1/entitlements/acme?platform=eu&platform=us", 400, "BAD_REQUEST", ""},
		{"/v1/entitlements/acme?plattform=eu", 400, "BAD_REQUEST", ""},
		{"/v1/entitlements/acme?platform=%zz", 400, "BAD_REQUEST", ""},
		{"/v1/entitlements/acme?platform=eu;x", 400, "BAD_REQUEST", ""},

		{"/v1/check?tenant=acme&feature=users", 204, "", "25"},
		{"/v1/check?tenant=acme&feature=users&quantity=25", 204, "", "25"},
		{"/v1/check?tenant=acme&feature=users&quantity=26", 403, "DENIED", "25"},
		{"/v1/check?tenant=acme&feature=users&quantity=0", 204, "", "25"},
		{"/v1/check?tenant=acme&feature=users&quantity=18446744073709551616", 403, "DENIED", "25"},
		{"/v1/check?tenant=acme&feature=sso", 204, "", "unlimited"},
		{"/v1/check?tenant=acme&feature=sso&quantity=99999999999999999999", 204, "", "unlimited"},
		{"/v1/check?tenant=acme&feature=none&quantity=0", 204, "", "0"},
		{"/v1/check?tenant=acme&feature=none&quantity=1", 403, "DENIED", "0"},
		{"/v1/check?tenant=acme&feature=huge&quantity=9007199254740991", 204, "", "9007199254740991"},
		{"/v1/check?tenant=acme&feature=huge&quantity=9007199254740992", 403, "DENIED", "9007199254740991"},
		{"/v1/check?tenant=acme&feature=other", 403, "DENIED", "0"},
		{"/v1/check?tenant=acme&feature=Users", 403, "DENIED", "0"},
		{"/v1/check?tenant=empty&feature=users", 403, "DENIED", "0"},
		{"/v1/check?tenant=nobody&feature=users", 404, "TENANT_UNKNOWN", ""},
		{"/v1/check?tenant=silent&feature=users", 404, "FEATURES_UNKNOWN", ""},
		{"/v1/check?tenant=twice&feature=users", 409, "AMBIGUOUS", ""},
		{"/v1/check?tenant=twice&feature=users&platform=us", 204, "", "2"},
		{"/v1/check?tenant=plain&feature=users&platform=", 204, "", "5"},
		{"/v1/check?tenant=acme&feature=users&platform=us", 404, "TENANT_UNKNOWN", ""},
		{"/v1/check?tenant=broken&feature=users", 503, "NOT_READY", ""},
		{"/v1/check?tenant=a%20b%26c%3Dd%252F%2B&feature=users", 204, "", "1"},
		{"/v1/check?tenant=a+b%26c%3Dd%252F%2B&feature=users", 204, "", "1"}, // + is a space in a query
		{"/v1/check?tenant=a/b&feature=users", 204, "", "1"},
		{"/v1/check?tenant=brücke&feature=users", 204, "", "1"},
		{"/v1/check?tenant=acme&feature=機能", 204, "", "4"},

		{"/v1/check?tenant=nobody&feature=users&unknown=allow", 204, "", "unknown"},
		{"/v1/check?tenant=nobody&feature=users&unknown=deny", 403, "DENIED", "unknown"},
		{"/v1/check?tenant=twice&feature=users&unknown=allow", 204, "", "unknown"},
		{"/v1/check?tenant=twice&feature=users&unknown=deny", 403, "DENIED", "unknown"},
		{"/v1/check?tenant=half&feature=users&unknown=allow", 204, "", "unknown"}, // no on eu, not known on us
		{"/v1/check?tenant=half&feature=users&unknown=deny", 403, "DENIED", "unknown"},
		{"/v1/check?tenant=twice&feature=users&platform=us&unknown=deny", 204, "", "2"},
		{"/v1/check?tenant=acme&feature=users&unknown=deny", 204, "", "25"},
		{"/v1/check?tenant=acme&feature=other&unknown=allow", 403, "DENIED", "0"},
		{"/v1/check?tenant=broken&feature=users&unknown=allow", 503, "NOT_READY", ""},
		{"/v1/check?tenant=acme&feature=users&unknown=yes", 400, "BAD_REQUEST", ""},

		{"/v1/check?tenant=acme", 400, "BAD_REQUEST", ""},
		{"/v1/check?feature=users", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=&feature=users", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=", 400, "BAD_REQUEST", ""},
		{"/v1/check?Tenant=acme&feature=users", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&co&feature=users", 400, "BAD_REQUEST", ""}, // a code that nobody escaped
		{"/v1/check?tenant=acme&tenant=nobody&feature=users", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=users&quantiy=99", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=users;quantity=99", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme%&feature=users", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme%ff&feature=users", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=users&quantity=", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=users&quantity=-1", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=users&quantity=%2B1", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=users&quantity=1e3", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=sso&quantity=99999999999999999999x", 400, "BAD_REQUEST", ""},
		{"/v1/check?tenant=acme&feature=users&quantity=%D9%A1", 400, "BAD_REQUEST", ""}, // a digit, but not one of ours
	} {
		for _, method := range []string{"GET", "HEAD"} {
			resp := ask(t, h, method, tc.target, "")
			var body struct{ Limit json.Number }
			limit := resp.Header.Get("Usher-Limit")
			if resp.Header.Get("Usher-Unknown") == "true" {
				limit += "unknown"
			}
			code := ""
			if resp.StatusCode == 200 {
				if err := json.Unmarshal([]byte(jsonOf(t, resp)), &body); err != nil {
					t.Error(err)
				}
				limit = string(body.Limit)
			} else {
				code = errorCode(t, resp)
			}
			if resp.StatusCode != tc.status || code != tc.code || limit != tc.limit {
				t.Errorf("%s %s: %d %s, limit %q; want %d %s, %q", method, tc.target, resp.StatusCode, code, limit, tc.status, tc.code, tc.limit)
			}
			if got := resp.Header.Get("Retry-After"); (got == "1") != (tc.status == 503) {
				t.Errorf("%s: Retry-After is %q", tc.target, got)
			}
		}
	}
}

// Every answer that may be outdated has the header Usher-Stale.
func TestStale(t *testing.T) {
	h := New(config(t))
	const context = `{"context":{"targetingKey":"old"}}`
	for _, tc := range []struct {
		method, target, body string
		status               int
	}{
		{"GET", "/v1/entitlements/old", "", 200},
		{"GET", "/v1/entitlements/old/users", "", 200},
		{"GET", "/v1/check?tenant=old&feature=users", "", 204},
		{"GET", "/v1/check?tenant=old&feature=other", "", 403},
		{"POST", "/ofrep/v1/evaluate/flags/users", context, 200},
		{"POST", "/ofrep/v1/evaluate/flags", context, 200},
	} {
		resp := ask(t, h, tc.method, tc.target, tc.body)
		if got := resp.Header.Get("Usher-Stale"); got != "2" || resp.StatusCode != tc.status {
			t.Errorf("%s: %s, Usher-Stale %q", tc.target, resp.Status, got)
		}
	}
}

func TestMethods(t *testing.T) {
	h := New(config(t))
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", "PURGE", "TRACE"} {
		for _, tc := range []struct{ target, allow string }{
			{"/v1/entitlements/acme", "GET, HEAD"},
			{"/v1/entitlements/acme/users", "GET, HEAD"},
			{"/v1/check?tenant=acme&feature=users", "GET, HEAD"},
			{"/ofrep/v1/evaluate/flags", "POST"},
			{"/ofrep/v1/evaluate/flags/users", "POST"},
		} {
			resp := ask(t, h, method, tc.target, `{"context":{"targetingKey":"acme"}}`)
			allowed := false
			for m := range strings.SplitSeq(tc.allow, ", ") {
				allowed = allowed || m == method
			}
			if (resp.StatusCode == 405) == allowed || !allowed && method != "TRACE" && resp.Header.Get("Allow") != tc.allow {
				t.Errorf("%s %s: %s, Allow %q", method, tc.target, resp.Status, resp.Header.Get("Allow"))
			}
		}
		if resp := ask(t, h, method, "/elsewhere", ""); method != "TRACE" && resp.StatusCode != 404 {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}

// Each question about a feature is counted once, by its result. Nothing else is counted.
func TestCounting(t *testing.T) {
	var results []string
	cfg := config(t)
	cfg.Checked = func(result string) { results = append(results, result) }
	h := New(cfg)
	for _, tc := range []struct{ method, target, body, want string }{
		{"GET", "/v1/check?tenant=acme&feature=users", "", "enabled"},
		{"HEAD", "/v1/check?tenant=acme&feature=users", "", "enabled"},
		{"GET", "/v1/check?tenant=acme&feature=users&quantity=26", "", "denied"},
		{"GET", "/v1/check?tenant=acme&feature=other", "", "denied"},
		{"GET", "/v1/check?tenant=nobody&feature=users", "", "unknown"},
		{"GET", "/v1/check?tenant=silent&feature=users", "", "unknown"},
		{"GET", "/v1/check?tenant=twice&feature=users", "", "unknown"},
		{"GET", "/v1/entitlements/acme/users", "", "enabled"},
		{"GET", "/v1/entitlements/acme/other", "", "denied"},
		{"GET", "/v1/entitlements/nobody/users", "", "unknown"},
		{"POST", "/ofrep/v1/evaluate/flags/users", `{"context":{"targetingKey":"acme"}}`, "enabled"},
		{"POST", "/ofrep/v1/evaluate/flags/none.limit", `{"context":{"targetingKey":"acme"}}`, "enabled"},
		{"POST", "/ofrep/v1/evaluate/flags/other.limit", `{"context":{"targetingKey":"acme"}}`, "denied"},
		{"POST", "/ofrep/v1/evaluate/flags/other", `{"context":{"targetingKey":"acme"}}`, "denied"},
		{"POST", "/ofrep/v1/evaluate/flags/users", `{"context":{"targetingKey":"nobody"}}`, "unknown"},

		{"GET", "/v1/check?tenant=acme", "", ""},
		{"GET", "/v1/entitlements/acme", "", ""},
		{"GET", "/v1/entitlements/nobody", "", ""},
		{"POST", "/v1/check?tenant=acme&feature=users", "", ""},
		{"POST", "/ofrep/v1/evaluate/flags", `{"context":{"targetingKey":"acme"}}`, ""},
		{"POST", "/ofrep/v1/evaluate/flags/users", `{}`, ""},
		{"GET", "/elsewhere", "", ""},
	} {
		results = nil
		ask(t, h, tc.method, tc.target, tc.body)
		if got := strings.Join(results, " "); got != tc.want {
			t.Errorf("%s %s: counted as %q, want %q", tc.method, tc.target, got, tc.want)
		}
	}
}

// An outage is one line in the log, not one for each request. Only the log has the store's own error.
func TestOutageInLog(t *testing.T) {
	var log strings.Builder
	cfg := config(t)
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	h := New(cfg)
	for range 100 {
		ask(t, h, "GET", "/v1/check?tenant=broken&feature=users", "")
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "input/output error") {
		t.Errorf("%s", got)
	}
}
