package serve_test

import (
	"encoding/base64"
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// USHER_UPSTREAM_TIMEOUT is for calls only. A token endpoint that is slower than that still has ten seconds, and
// callers wait for it.
func TestTokenSlowerThanCallsMayBe(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.FailTokens(sandbox.Fault{Delay: 1500 * time.Millisecond})
	p := start(t, s.Environ("USHER_UPSTREAM_TIMEOUT=1s"))
	testkit.Eventually(t, "answered", func() bool { // a slow machine may need more than a second for a call
		resp, body := call(t, p.URL(t, "main"))
		if resp.StatusCode != 200 && !strings.Contains(body, "UPSTREAM_TIMEOUT") {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		return resp.StatusCode == 200
	})
	s.FailGraphQL(sandbox.Fault{Hang: true})
	wantCall(t, p.URL(t, "main"), 504, "UPSTREAM_TIMEOUT")
}

func TestSecretRotation(t *testing.T) {
	t.Parallel()
	s := newService(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("wrong-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(s.Environ(), "USHER_CLIENT_SECRET=", "USHER_CLIENT_SECRET_FILE="+file)
	p := start(t, env)
	url := p.URL(t, "main")
	for range 100 {
		wantCall(t, url, 502, `"reason":"invalid_client"`)
	}
	if n := s.TokenRequests(); n > 10 { // one after each pause, of which a slow machine has more
		t.Errorf("%d token requests for 100 calls", n)
	}
	if status, body := get(t, p.URL(t, "admin")+"/readyz"); status != 503 || !strings.Contains(body, "invalid_client") {
		t.Errorf("%d %s", status, body)
	}
	if err := os.WriteFile(file, []byte("t0psecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	testkit.Eventually(t, "recovered", func() bool { resp, _ := call(t, url); return resp.StatusCode == 200 })
	t.Logf("recovered %v after the change", time.Since(before).Round(time.Millisecond))
	p.Ready(t)

	// A wrong one after that is known at once, although the token is good for two hours.
	_, metrics := get(t, p.URL(t, "admin")+"/metrics")
	refused := regexp.MustCompile(`usher_token_requests_total\{.*rejected.*`)
	known := refused.FindString(metrics)
	if err := os.WriteFile(file, []byte("wr0ng-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a trouble on the page", func() bool {
		_, status := get(t, p.URL(t, "admin")+"/api/status")
		return strings.Contains(status, "token request rejected: invalid_client, and the current token is valid for another") && strings.Contains(status, "Calls go on as long as the current token is valid")
	})
	_, metrics = get(t, p.URL(t, "admin")+"/metrics")
	if now := refused.FindString(metrics); now == known || known == "" {
		t.Errorf("the metric was %q and is %q", known, now)
	}
	testkit.Eventually(t, "a line in the log", func() bool {
		log := p.Stderr.String()
		return strings.Contains(log[strings.LastIndex(log, "new value in use"):], "cannot fetch a token")
	})
	wantCall(t, url, 200, "accounts")
	p.Ready(t)
}

func TestPortsShareTokens(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ(
		"USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_SCOPE=standard:write  standard:read", "USHER_PORTS_0_NAME=same",
		"USHER_PORTS_1_LISTEN=127.0.0.1:0", "USHER_PORTS_1_SCOPE=standard:read", "USHER_PORTS_1_NAME=readonly", "USHER_PORTS_1_KEY=k",
		"USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0"))
	p.Ready(t)
	wantCall(t, p.URL(t, "main"), 200, "accounts")
	wantCall(t, p.URL(t, "same"), 200, "accounts")
	wantCall(t, p.URL(t, "readonly"), 401, "KEY_REQUIRED")
	if n := s.TokenRequests(); n != 2 {
		t.Errorf("%d token requests for two identities", n)
	}
	_, metrics := get(t, p.URL(t, "admin")+"/metrics")
	for _, want := range []string{
		`usher_token_requests_total{port="main",result="ok"} 1`,
		`usher_token_requests_total{port="readonly",result="ok"} 1`,
		`usher_proxy_requests_total{code="200",port="same"} 1`,
		`usher_proxy_requests_total{code="401",port="readonly"} 1`,
		`usher_proxy_in_flight{port="main"} 0`,
		`usher_proxy_retries_total{port="main"} 0`,
		`usher_token_early_revocations_total{port="main"} 0`,
		`usher_token_expiry_timestamp_seconds{port="main"} 1.`,
		`usher_proxy_request_duration_seconds_count{port="main"} 1`,
		`usher_webhook_received_total{decision="queued"} 0`, `usher_webhook_tries_total{receiver="main",result="ok"} 0`, `usher_webhook_duration_seconds_count 0`,
		`usher_inbox_pending 0`, `usher_inbox_oldest_seconds 0`, `usher_inbox_parked 0`,
		`usher_build_info{`, `process_open_fds`, `go_goroutines`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if strings.Contains(metrics, `usher_token_requests_total{port="same"`) {
		t.Error("a shared token is counted twice")
	}
}

// A token endpoint that repeats the client secret, escaped: what the caller, the log, the admin port and 'usher check'
// say has neither the secret nor a spelling of it.
func TestEscapedSecretDoesNotShow(t *testing.T) {
	t.Parallel()
	const secret = `pa&ss<w0rd>"x`
	for name, description := range map[string]string{
		"HTML":   "wrong: " + html.EscapeString(secret),
		"base64": "wrong: Basic " + base64.StdEncoding.EncodeToString([]byte("app:"+secret)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			body, _ := json.Marshal(map[string]string{"error": "invalid_client", "error_description": description})
			s.FailTokens(sandbox.Fault{Status: 401, Body: string(body)})
			environ := s.Environ("USHER_CLIENT_SECRET=" + secret)
			check := start(t, environ, "check")
			<-check.Ended
			p := start(t, environ)
			_, answer := call(t, p.URL(t, "main"))
			_, ready := get(t, p.URL(t, "admin")+"/readyz")
			_, status := get(t, p.URL(t, "admin")+"/api/status")
			p.End()
			for where, shown := range map[string]string{"the answer": answer, "readyz": ready, "the status": status, "the log": p.Stderr.String(), "check": check.Stdout.String() + check.Stderr.String()} {
				for _, part := range []string{"w0rd", base64.StdEncoding.EncodeToString([]byte("app:" + secret))[8:16]} {
					if strings.Contains(shown, part) {
						t.Errorf("%s shows %q: %s", where, part, shown)
					}
				}
				if !strings.Contains(shown, "wrong: ") && !strings.Contains(shown, "repeats a secret") {
					t.Errorf("%s says nothing of the description: %s", where, shown)
				}
			}
		})
	}
}
