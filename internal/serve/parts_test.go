package serve_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// gateway is the environment of a gate alone, without settings of the billing service.
func gateway(forward string, extra ...string) []string {
	return append([]string{
		"USHER_WEBHOOK_FORWARD_URL=" + forward, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	}, extra...)
}

// A gate alone is ready at once and receives webhooks. It has no local port: no listener, no metric, no section on
// the page, no line in usher check. Its secrets can be rotated.
func TestGateAlone(t *testing.T) {
	t.Parallel()
	r := sandbox.NewReceiver()
	receiver := httptest.NewServer(r)
	defer receiver.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0ldtoken"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := gateway(receiver.URL, "USHER_WEBHOOK_TOKEN_FILE="+token, "USHER_CLIENT_ID=left-over", "USHER_LISTEN=127.0.0.1:1")
	p := start(t, env)
	admin := p.URL(t, "admin")
	if status, body := get(t, admin+"/readyz"); status != 200 { // at once
		t.Errorf("%d %s", status, body)
	}
	wantReady(t, admin, "gate", 200, `{"problems":[],"ready":true}`)
	wantReady(t, admin, "outbound", 404, `{"problems":["outbound is off (to switch it on, set USHER_BASE_URL)"],"ready":false}`)
	wantReady(t, admin, "entitlements", 404, `to switch it on, set USHER_ENTITLEMENTS_LISTEN`)
	url := p.URL(t, "webhooks") + "/webhooks"
	if status, _, answer := post(t, url+"/0ldtoken", snapshot("acme", 5)); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
	if err := os.WriteFile(token, []byte("n3wtoken"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "rotated", func() bool { status, _, _ := post(t, url+"/n3wtoken", snapshot("acme", 6)); return status == 200 })
	_, metrics := get(t, admin+"/metrics")
	_, page := get(t, admin+"/")
	_, status := get(t, admin+"/api/status")
	if strings.Contains(metrics, "usher_proxy_") || strings.Contains(metrics, "usher_token_") || !strings.Contains(metrics, "usher_inbox_pending 0") {
		t.Error(metrics)
	}
	if strings.Contains(page, "Local ports") || !strings.Contains(page, "Webhook gate") || !strings.Contains(page, "All is well") {
		t.Error(page)
	}
	if !strings.Contains(status, `"ports":[]`) || !strings.Contains(status, `"ready":true`) {
		t.Error(status)
	}
	if log := p.Stderr.String(); strings.Contains(log, `"listener":"main"`) {
		t.Error(log)
	}
	c := start(t, env, "check")
	<-c.Ended
	if out := c.Stdout.String(); c.Code != 0 || !strings.HasPrefix(out, "ok    settings\nok    receiver") || strings.Count(out, "\n") != 2 {
		t.Errorf("%d\n%s", c.Code, out)
	}
}

// Outbound alone has nothing of the gate.
func TestOutboundAlone(t *testing.T) {
	t.Parallel()
	p := start(t, newService(t).Environ("USHER_WEBHOOK_TOKEN=left-over"))
	p.Ready(t)
	admin := p.URL(t, "admin")
	wantReady(t, admin, "outbound", 200, `"ready":true`)
	wantReady(t, admin, "gate", 404, "the webhook gate is off (to switch it on, set USHER_WEBHOOK_FORWARD_URL")
	_, metrics := get(t, admin+"/metrics")
	if strings.Contains(metrics, "usher_webhook_") || strings.Contains(metrics, "usher_inbox_") || !strings.Contains(metrics, "usher_token_requests_total") {
		t.Error(metrics)
	}
	_, page := get(t, admin+"/")
	if !strings.Contains(page, "Local ports") || strings.Contains(page, "ebhook") {
		t.Error(page)
	}
	if log := p.Stderr.String(); strings.Contains(log, `"listener":"webhooks"`) {
		t.Error(log)
	}
}

// If the service refuses the client, the local port is not ready, but the gate is and stays in its load balancer.
func TestGateOfAInvalidClient(t *testing.T) {
	t.Parallel()
	g := startGate(t, "USHER_CLIENT_SECRET=wr0ng")
	admin := g.URL(t, "admin")
	testkit.Eventually(t, "invalid", func() bool {
		status, body := get(t, admin+"/readyz/outbound")
		return status == 503 && strings.Contains(body, "invalid_client")
	})
	wantReady(t, admin, "outbound", 503, "invalid_client")
	wantReady(t, admin, "gate", 200, `"ready":true`)
	if status, _ := get(t, admin+"/readyz"); status != 503 {
		t.Errorf("/readyz: %d", status)
	}
	if status, decision, answer := post(t, g.url, snapshot("acme", 5)); status != 200 || decision != "forwarded" {
		t.Errorf("%d %s", status, answer)
	}
}

func wantReady(t *testing.T, admin, part string, status int, want string) {
	t.Helper()
	if got, body := get(t, admin+"/readyz/"+part); got != status || !strings.Contains(body, want) {
		t.Errorf("/readyz/%s: %d %s, want %d with %s", part, got, body, status, want)
	}
	series := map[int]string{200: "1", 503: "0"}[status] // none for a part that is off
	_, metrics := get(t, admin+"/metrics")
	_, value, _ := strings.Cut(metrics, "\nusher_ready{part=\""+part+"\"} ")
	if value, _, _ = strings.Cut(value, "\n"); value != series {
		t.Errorf("usher_ready of %s is %q, want %q", part, value, series)
	}
}

// Without the main port its further ports still work, and inherit its identity. With none, usher has nothing to wait
// for.
func TestMainPortOff(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ("USHER_LISTEN=off", "USHER_PORTS_0_LISTEN=127.0.0.1:0"))
	p.Ready(t)
	wantCall(t, p.URL(t, "0"), 200, "accounts")
	if _, body := get(t, p.URL(t, "admin")+"/metrics"); strings.Contains(body, `port="main"`) {
		t.Error("the metrics have the main port")
	}
	p = start(t, s.Environ("USHER_LISTEN=off"))
	p.Ready(t)
	if status, body := get(t, p.URL(t, "admin")+"/readyz/outbound"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	for _, page := range []string{"/", "/api/status"} {
		if status, body := get(t, p.URL(t, "admin")+page); status != 200 {
			t.Errorf("%s: %d %s", page, status, body)
		}
	}
	if n := s.TokenRequests(); n != 1 {
		t.Errorf("%d token requests, want that of port 0", n)
	}
}
