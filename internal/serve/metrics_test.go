package serve_test

import (
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// metricNames are a promise: dashboards and alerts of users depend on them.
var metricNames = []string{
	`usher_proxy_requests_total{code="200",port="main"}`, `usher_proxy_request_duration_seconds_count{port="main"}`,
	`usher_proxy_in_flight{port="main"}`, `usher_proxy_retries_total{port="main"}`,
	`usher_token_requests_total{port="main",result="ok"}`, `usher_token_requests_total{port="main",result="rejected"}`,
	`usher_token_requests_total{port="main",result="unavailable"}`,
	`usher_token_expiry_timestamp_seconds{port="main"}`, `usher_token_early_revocations_total{port="main"}`,
	`usher_webhook_received_total{decision="queued"}`, `usher_webhook_tries_total{receiver="main",result="ok"}`,
	`usher_webhook_duration_seconds_count`, `usher_inbox_pending`, `usher_inbox_oldest_seconds`, `usher_inbox_parked`,
	`usher_inbox_delivery_seconds_count{receiver="main"}`, `usher_inbox_delivery_seconds_count{receiver="docs"}`,
	`usher_inbox_receiver_pending{receiver="docs"}`, `usher_inbox_receiver_oldest_seconds{receiver="docs"}`, `usher_inbox_receiver_parked{receiver="docs"}`,
	`usher_inbox_receiver_pending{receiver="main"}`,
	`usher_inbox_used_bytes`, `usher_inbox_limit_bytes`, `usher_inbox_invalid`, `usher_webhook_invalid_total{reason="schema"}`,
	`usher_entitlement_checks_total{result="enabled"}`, `usher_entitlement_checks_total{result="denied"}`, `usher_entitlement_checks_total{result="unknown"}`,
	`usher_entitlement_tenants`, `usher_entitlement_check_seconds_count`, `usher_entitlement_failed_total`,
	`usher_ready{part="outbound"}`, `usher_ready{part="gate"}`, `usher_ready{part="entitlements"}`,
	`usher_proxy_failed_total{port="main",reason="TOKEN_REJECTED"}`,
}

// /metrics has every promised name, with and without an inbox, and separate figures for each receiver.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	main, docs := sandbox.NewReceiver(), sandbox.NewReceiver()
	mainServer, docsServer := httptest.NewServer(main), httptest.NewServer(docs)
	defer mainServer.Close()
	defer docsServer.Close()
	env := newService(t).Environ(
		"USHER_WEBHOOK_FORWARD_URL="+mainServer.URL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_RECEIVERS_0_NAME=docs", "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+docsServer.URL,
	)
	box := "USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db")
	p := start(t, append(env, box, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0"))
	p.Ready(t)
	wantCall(t, p.URL(t, "main"), 200, "accounts")
	docs.Fail(sandbox.Fault{Status: 500})
	gate := p.URL(t, "webhooks") + "/webhooks"
	post(t, gate, of("crm", "acme", 5))
	post(t, gate, of("docs", "acme", 5))
	post(t, gate, of("docs", "acme", 6))
	var metrics string
	testkit.Eventually(t, "delivered, and not", func() bool {
		_, metrics = get(t, p.URL(t, "admin")+"/metrics")
		return strings.Contains(metrics, `usher_webhook_tries_total{receiver="docs",result="status"} `) && strings.Contains(metrics, "\nusher_inbox_pending 2\n") && strings.Contains(metrics, "usher_inbox_delivery_seconds_count{receiver=\"main\"} 1\n") &&
			// figures are cached for a second, and may be counted anew within one answer
			strings.Contains(metrics, "\nusher_entitlement_tenants 2\n")
	})
	for _, name := range metricNames {
		if !strings.Contains(metrics, "\n"+name+" ") {
			t.Errorf("there is no %s", name)
		}
	}
	for _, want := range []string{
		`usher_inbox_pending 2`, `usher_inbox_receiver_pending{receiver="main"} 0`, `usher_inbox_receiver_pending{receiver="docs"} 2`,
		`usher_inbox_delivery_seconds_count{receiver="docs"} 0`, `usher_inbox_limit_bytes 1.073741824e+09`, `usher_entitlement_tenants 2`,
	} {
		if !strings.Contains(metrics, "\n"+want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if used := regexp.MustCompile(`(?m)^usher_inbox_used_bytes (.*)$`).FindStringSubmatch(metrics); used == nil || used[1] == "0" {
		t.Errorf("what waits takes %q bytes", used)
	}
	// Without an inbox the figures of the inbox exist and are zero, so that the same dashboards work.
	p = start(t, env)
	p.Ready(t)
	wantCall(t, p.URL(t, "main"), 200, "accounts")
	_, metrics = get(t, p.URL(t, "admin")+"/metrics")
	for _, name := range metricNames {
		if !strings.Contains(name, "entitlement") && !strings.Contains(metrics, "\n"+name+" ") {
			t.Errorf("without an inbox there is no %s", name)
		}
	}
}
