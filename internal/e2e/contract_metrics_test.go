//go:build unix

package e2e

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// figures are those of /metrics, by name and labels as Prometheus writes them.
func figures(t *testing.T, u *testkit.Usher) map[string]string {
	t.Helper()
	_, metrics := testkit.Get(t, u.URL(t, "admin")+"/metrics")
	all := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^(usher_\S+) (\S+)$`).FindAllStringSubmatch(metrics, -1) {
		all[m[1]] = m[2]
	}
	return all
}

// wantFigures waits for figures: who counts may be a moment behind the answer. "positive" is any
// but zero.
func wantFigures(t *testing.T, u *testkit.Usher, want map[string]string) {
	t.Helper()
	for name, value := range want {
		var got string
		defer func() {
			if t.Failed() {
				t.Logf("%s is %q", name, got)
			}
		}()
		testkit.Eventually(t, name+" is "+value, func() bool {
			got = figures(t, u)[name]
			return got == value || value == "positive" && got != "" && got != "0"
		})
	}
}

// What is counted goes up when it happens: calls, second tries, and what becomes of token requests.
func TestFiguresOfCalls(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	u := run(t, s.Environ())
	u.Ready(t)
	testkit.WantCall(t, u.URL(t, "main"), 200, "accounts")
	s.Revoke()
	testkit.WantCall(t, u.URL(t, "main"), 200, "accounts")
	s.FailTokens(sandbox.Fault{Status: 400, Body: `{"error":"invalid_client"}`})
	s.Revoke()
	testkit.WantCall(t, u.URL(t, "main"), 502, "TOKEN_REJECTED")
	wantFigures(t, u, map[string]string{
		`usher_proxy_requests_total{code="200",port="main"}`: "2", `usher_proxy_requests_total{code="502",port="main"}`: "1",
		`usher_proxy_request_duration_seconds_count{port="main"}`: "3", `usher_proxy_in_flight{port="main"}`: "0", `usher_proxy_retries_total{port="main"}`: "1",
		`usher_token_requests_total{port="main",result="ok"}`: "2", `usher_token_requests_total{port="main",result="rejected"}`: "positive",
		`usher_token_early_revocations_total{port="main"}`: "2", `usher_token_expiry_timestamp_seconds{port="main"}`: "positive",
		`usher_proxy_failed_total{port="main",reason="TOKEN_REJECTED"}`: "1", `usher_proxy_failed_total{port="main",reason="UNAUTHORIZED"}`: "0", `usher_ready{part="outbound"}`: "1",
	})
	s.FailTokens(sandbox.Fault{Status: 500})
	entered := make(chan struct{}, 1)
	s.OnCall = func(*http.Request, []byte) { entered <- struct{}{} }
	s.FailGraphQL(sandbox.Fault{Hang: true})
	hangs, err := http.NewRequestWithContext(t.Context(), "POST", u.URL(t, "main")+"/graphql", strings.NewReader(testkit.Query))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = http.DefaultClient.Do(hangs) }()
	<-entered
	wantFigures(t, u, map[string]string{`usher_proxy_in_flight{port="main"}`: "1"})
	wantFigures(t, u, map[string]string{`usher_token_requests_total{port="main",result="unavailable"}`: "positive"})
	s.FailGraphQL(sandbox.Fault{})
}

// And webhooks, what is parked, and checks.
func TestFiguresOfWebhooks(t *testing.T) {
	t.Parallel()
	parks, down := newReceiver(t, 422), newReceiver(t, 503)
	u := run(t, gateAlone(parks.url, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_0_NAME=docs", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+down.url))
	u.Ready(t)
	for _, body := range []string{on("crm", "acme", 1), on("docs", "acme", 1), on("docs", "acme", 1), "{"} {
		testkit.Post(t, hooks(t, u), body)
	}
	for _, query := range []string{"tenant=acme&platform=crm&feature=users", "tenant=acme&platform=crm&feature=sso", "tenant=nobody&feature=sso"} {
		testkit.Get(t, u.URL(t, "entitlements")+"/v1/check?"+query)
	}
	wantFigures(t, u, map[string]string{
		`usher_webhook_received_total{decision="queued"}`: "2", `usher_webhook_received_total{decision="duplicate"}`: "1", `usher_webhook_received_total{decision="rejected"}`: "1",
		`usher_webhook_tries_total{receiver="main",result="status"}`: "1", `usher_webhook_tries_total{receiver="docs",result="status"}`: "positive",
		`usher_webhook_duration_seconds_count`: "4", `usher_inbox_pending`: "1", `usher_inbox_parked`: "1", `usher_inbox_oldest_seconds`: "positive",
		`usher_inbox_receiver_pending{receiver="docs"}`: "1", `usher_inbox_receiver_pending{receiver="main"}`: "0", `usher_inbox_receiver_oldest_seconds{receiver="docs"}`: "positive",
		`usher_inbox_receiver_parked{receiver="main"}`: "1", `usher_inbox_receiver_parked{receiver="docs"}`: "0",
		`usher_entitlement_checks_total{result="enabled"}`: "1", `usher_entitlement_checks_total{result="denied"}`: "1", `usher_entitlement_checks_total{result="unknown"}`: "1",
		`usher_entitlement_tenants`: "2", `usher_entitlement_check_seconds_count`: "3", `usher_entitlement_failed_total`: "0", `usher_webhook_rejected_total{code="400"}`: "1",
	})
	down.set(200)
	testkit.Eventually(t, "delivered", func() bool { return figures(t, u)[`usher_inbox_delivery_seconds_count{receiver="docs"}`] == "1" })
}

// What is erased is unknown, at once and after a restart; and nothing of it is remembered.
func TestErasedIsUnknown(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 200)
	env := gateAlone(rc.url, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0")
	u := run(t, env)
	want := func(status int, part string) {
		t.Helper()
		u.Ready(t)
		if got, body := testkit.Get(t, u.URL(t, "entitlements")+"/v1/entitlements/acme/users"); got != status || !strings.Contains(body, part) {
			t.Errorf("%d %s, want %d with %s", got, body, status, part)
		}
	}
	send := func() {
		t.Helper()
		if _, decision, answer := testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 5)); decision != "queued" {
			t.Errorf("%s %s", decision, answer)
		}
	}
	send()
	want(200, `"limit":5`)
	testkit.Eventually(t, "delivered", func() bool { return states(t, u) == "1 delivered" })
	if code, out, stderr := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")}, "inbox", "erase", "--yes", "crm/acme"); code != 0 {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	want(404, "TENANT_UNKNOWN")
	if got := states(t, u); got != "" {
		t.Errorf("what is left: %s", got)
	}
	u.End()
	u = run(t, env)
	want(404, "TENANT_UNKNOWN")
	send()
	want(200, `"limit":5`)
}
