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
		testkit.Eventually(t, "the database answers", func() bool { // on a busy machine it may not, for a while
			req, err := http.NewRequest(method, "http://"+host+path, strings.NewReader(body))
			if err == nil {
				req.Header.Set("Content-Type", kind)
			}
			got := do(req, err)
			late := got.status == http.StatusServiceUnavailable && (strings.Contains(got.body, "does not answer") || strings.Contains(got.body, "NOT_READY"))
			if !late && (got.err != nil || got.status >= 500) {
				t.Errorf("%s %s %q: %d %s %v", method, path, body, got.status, got.body, got.err)
			}
			return !late
		})
	}
	for _, odd := range []string{"a\x00", "\xff"} {
		code := url.PathEscape(odd)
		for path, parameters := range map[string]string{
			"/": "tenant", "/webhooks": "state tenant platform since before after limit", "/webhooks/1": "did", "/webhooks/1/redeliver": "force",
			"/tenants": "search after", "/tenant": "code platform", "/tenant/erase": "code platform", "/actions": "before", "/redeliver": "tenant platform", "/pause": "tenant receiver",
			"/api/webhooks": "state tenant platform until", "/api/tenant": "code platform", "/api/tenants": "search trouble", "/api/actions": "before",
		} {
			for _, name := range strings.Fields(parameters) {
				ask("GET", u.admin, path+"?"+url.Values{name: {odd}}.Encode(), "", "")
				ask("GET", u.admin, path+"?"+url.Values{"code": {"acme"}, "tenant": {"acme"}, "platform": {odd}}.Encode(), "", "")
			}
		}
		ask("GET", u.admin, "/webhooks/"+code, "", "")
		ask("GET", u.admin, "/api/webhooks/"+code, "", "")
		for _, call := range strings.Fields("redeliver discard accept erase resume pause") {
			for _, name := range strings.Fields("tenant platform receiver ids until") {
				ask("POST", u.admin, "/api/"+call, "application/json", fmt.Sprintf(`{%q:"%s"}`, name, odd))
				ask("POST", u.admin, "/api/"+call, "application/json", fmt.Sprintf(`{"tenant":"acme",%q:"a\u0000"}`, name))
			}
		}
		for _, run := range []string{odd, `a\u0000`} {
			ask("POST", u.admin, "/api/reconcile", "application/json", fmt.Sprintf(`{"run":"%s"}`, run))
		}
		for _, form := range strings.Fields("/pause /resume /tenant/erase /redeliver /discard") {
			for _, name := range strings.Fields("tenant platform receiver code state until") {
				ask("POST", u.admin, form, "application/x-www-form-urlencoded", url.Values{name: {odd}}.Encode())
			}
		}
		for _, path := range []string{"/v1/entitlements/" + code, "/v1/entitlements/acme/" + code, "/v1/entitlements/acme?platform=" + url.QueryEscape(odd)} {
			ask("GET", entitlements, path, "", "")
		}
		for _, name := range []string{"tenant", "feature", "platform", "quantity", "unknown"} {
			query := url.Values{"tenant": {"acme"}, "feature": {"users"}}
			query.Set(name, odd)
			ask("GET", entitlements, "/v1/check?"+query.Encode(), "", "")
		}
		ask("POST", entitlements, "/ofrep/v1/evaluate/flags/"+code, "application/json", `{"context":{"targetingKey":"acme"}}`)
		for _, body := range []string{`{"context":{"targetingKey":"a\u0000"}}`, `{"context":{"targetingKey":"` + odd + `"}}`, `{"context":{"targetingKey":"acme","platform":"\u0000"}}`} {
			ask("POST", entitlements, "/ofrep/v1/evaluate/flags", "application/json", body)
		}
	}
}
