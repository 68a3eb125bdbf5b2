//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// No name has U+0000, or is invalid UTF-8, and PostgreSQL fails on either: whoever sends one is told
// so, and never gets a 5xx.
func TestOddCharactersInTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := start(t, w.environ("USHER_WEBHOOK_INBOX="+pgtest.Schema(t), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0")).ready(t)
	u.send(`{"type":"TenantProvisioningChange","payload":` + payload("acme", "users=25") + `}`)
	entitlements := strings.TrimPrefix(u.URL(t, "entitlements"), "http://")
	ask := func(method, host, path, kind, body string) {
		t.Helper()
		var got reply
		testkit.Eventually(t, "the database answers", func() bool { // on a busy machine it may not, for a while
			req, err := http.NewRequest(method, "http://"+host+path, strings.NewReader(body))
			if err == nil {
				req.Header.Set("Content-Type", kind)
			}
			got = do(req, err)
			return got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "does not answer") && !strings.Contains(got.body, "NOT_READY")
		})
		if got.err != nil || got.status >= 500 {
			t.Errorf("%s %s %q: %d %s %v", method, path, body, got.status, got.body, got.err)
		}
	}
	params := strings.Fields("state tenant platform search since until before after limit force code receiver did apply trouble at")
	// Each page with some of its parameters, and each parameter on some pages: one check is for all of them.
	step := 6
	if thorough() {
		step = 2
	}
	left := func(path, name, n int) bool { return (path+name+n*step/2)%step != 0 }
	for n, odd := range []string{"a\x00", "\xff"} {
		for p, path := range strings.Fields("/ /webhooks /webhooks/1 /webhooks/1/redeliver /webhooks/1/discard /webhooks/1/accept /redeliver /discard /pause /tenants /tenant /tenant/erase /actions " +
			"/api/status /api/webhooks /api/webhooks/1 /api/redeliver /api/discard /api/actions /api/tenant /api/tenants") {
			for i, name := range params {
				if left(p, i, n) {
					continue
				}
				query := url.Values{name: {odd}}
				ask("GET", u.admin, path+"?"+query.Encode(), "", "")
				if name == "platform" {
					query.Set("code", "acme")
					ask("GET", u.admin, path+"?"+query.Encode(), "", "")
					query.Set("tenant", "acme")
					query.Del("code")
					ask("GET", u.admin, path+"?"+query.Encode(), "", "")
				}
			}
		}
		ask("GET", u.admin, "/webhooks/"+url.PathEscape(odd), "", "")
		ask("GET", u.admin, "/api/webhooks/"+url.PathEscape(odd), "", "")
		for p, call := range strings.Fields("redeliver discard accept erase resume pause backup") {
			for i, name := range params {
				if left(p, i, n) {
					continue
				}
				ask("POST", u.admin, "/api/"+call+"?"+url.Values{name: {odd}}.Encode(), "application/json", `{}`)
			}
			for i, name := range strings.Fields("tenant platform receiver ids until") {
				if !thorough() && left(p, i, n) {
					continue
				}
				ask("POST", u.admin, "/api/"+call, "application/json", fmt.Sprintf(`{%q:"%s"}`, name, odd))
				if n > 0 {
					continue
				}
				ask("POST", u.admin, "/api/"+call, "application/json", fmt.Sprintf(`{%q:"a\u0000"}`, name))
				ask("POST", u.admin, "/api/"+call, "application/json", fmt.Sprintf(`{"tenant":"acme",%q:"a\u0000"}`, name))
				ask("POST", u.admin, "/api/"+call+"?run=x", "application/json", fmt.Sprintf(`{%q:"a\u0000"}`, name))
			}
		}
		ask("POST", u.admin, "/api/reconcile", "application/json", fmt.Sprintf(`{"run":"%s"}`, odd))
		ask("POST", u.admin, "/api/reconcile", "application/json", `{"run":"a\u0000"}`)
		for _, form := range strings.Fields("/pause /resume /tenant/erase /redeliver /discard") {
			for _, name := range strings.Fields("tenant platform receiver code state until") {
				ask("POST", u.admin, form, "application/x-www-form-urlencoded", url.Values{name: {odd}}.Encode())
			}
			ask("POST", u.admin, form, "application/x-www-form-urlencoded", url.Values{"code": {"acme"}, "tenant": {"acme"}, "platform": {odd}}.Encode())
		}
		code := url.PathEscape(odd)
		for _, path := range []string{"/v1/entitlements/" + code, "/v1/entitlements/acme/" + code, "/v1/entitlements/" + code + "/" + code} {
			ask("GET", entitlements, path, "", "")
			ask("GET", entitlements, path+"?"+url.Values{"platform": {odd}}.Encode(), "", "")
		}
		for _, name := range []string{"tenant", "feature", "platform", "quantity", "unknown"} {
			query := url.Values{"tenant": {"acme"}, "feature": {"users"}}
			query.Set(name, odd)
			ask("GET", entitlements, "/v1/check?"+query.Encode(), "", "")
		}
		ask("POST", entitlements, "/ofrep/v1/evaluate/flags/"+code, "application/json", `{"context":{"targetingKey":"acme"}}`)
		for _, body := range []string{`{"context":{"targetingKey":"a\u0000"}}`, `{"context":{"targetingKey":"` + odd + `"}}`, `{"context":{"targetingKey":"acme","platform":"\u0000"}}`} {
			ask("POST", entitlements, "/ofrep/v1/evaluate/flags/users", "application/json", body)
			ask("POST", entitlements, "/ofrep/v1/evaluate/flags", "application/json", body)
		}
	}
	if got := post(u.admin, "/api/reconcile?run=a%00", ""); got.status != 400 || !strings.Contains(got.body, "run") {
		t.Errorf("%d %s", got.status, got.body)
	}
}
