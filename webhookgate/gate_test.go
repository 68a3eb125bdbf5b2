package webhookgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRouting(t *testing.T) {
	plain := newGate(t, nil)
	guarded := newGate(t, func(c *setup) { c.Tokens = tokens("s3cret/+") })
	tests := []struct {
		gate           *Gate
		method, target string
		want           int
	}{
		{plain, "POST", "/webhooks", 200},
		{plain, "POST", "/webhooks?from=workflow", 200},
		{plain, "GET", "/webhooks", 405},
		{plain, "HEAD", "/webhooks", 405},
		{plain, "OPTIONS", "/webhooks", 405},
		{plain, "TRACE", "/webhooks", 405},
		{plain, "CONNECT", "/anything", 405},
		{plain, "POST", "/", 404},
		{plain, "POST", "/webhooks/", 404},
		{plain, "POST", "/webhooks/x", 404},
		{plain, "POST", "//webhooks", 404},
		{plain, "POST", "/webhooks/../webhooks", 404},
		{plain, "POST", "/web%68ooks", 404},
		{plain, "POST", "/Webhooks", 404},
		{guarded, "POST", "/webhooks", 401},
		{guarded, "POST", "/webhooks/", 401},
		{guarded, "POST", "/webhooks/wrong", 401},
		{guarded, "POST", "/webhooks/s3cret%2F+", 200},
		{guarded, "POST", "/webhooks/s3cret%2F%2B", 200},
		{guarded, "POST", "/webhooks/s3cret/+", 404},
		{guarded, "POST", "/webhooks/wrong/wrong", 404},
		{guarded, "POST", "/webhookswrong", 404},
		{guarded, "GET", "/webhooks/s3cret%2F%2B", 405},
	}
	for _, tt := range tests {
		got := serve(t, tt.gate, httptest.NewRequest(tt.method, tt.target, strings.NewReader(documented)))
		if got.Code != tt.want {
			t.Errorf("%s %s: got %v, want %d", tt.method, tt.target, got, tt.want)
		}
		allow := got.ResponseRecorder.Header().Get("Allow")
		if (tt.want == 405) != (allow == "POST") {
			t.Errorf("%s %s: Allow is %q", tt.method, tt.target, allow)
		}
	}
}

func TestShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: 3 * time.Second}
		g := newGate(t, func(c *setup) { c.Transport = receiver })
		start := time.Now()
		for _, name := range []string{"A", "B", "A"} {
			go func() {
				if got := post(t, g, snapshotOf("acme", name)); got.Code != 200 {
					t.Errorf("under way at shutdown: %v", got)
				}
			}()
			synctest.Wait()
		}
		done := make(chan error)
		go func() { done <- g.Shutdown(context.Background()) }()
		synctest.Wait()
		// Its connection still lasts, so it is taken in: nobody else would.
		if got := post(t, g, snapshotOf("other", "A")); got.Code != 200 {
			t.Errorf("during shutdown: %v", got)
		}
		if err := <-done; err != nil || time.Since(start) != 9*time.Second || receiver.count() != 4 {
			t.Errorf("%v after %v with %d deliveries", err, time.Since(start), receiver.count())
		}
		ended, end := context.WithCancel(t.Context())
		end()
		for range 20 {
			if err := g.Shutdown(ended); err != nil {
				t.Errorf("again, with nothing to wait for: %v", err)
			}
		}
	})
}

func TestShutdownBreaksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: 8 * time.Second}
		g := newGate(t, func(c *setup) { c.Transport = receiver })
		for _, name := range []string{"A", "B"} {
			go func() {
				if got := post(t, g, snapshotOf("acme", name)); got.Code != 503 {
					t.Errorf("broken off: %v", got)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		err := g.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if got := post(t, g, snapshotOf("late", "A")); got.Code != 503 {
			t.Errorf("after the grace: %v", got)
		}
		if receiver.count() != 0 {
			t.Errorf("%d delivered", receiver.count())
		}
	})
}

func TestHooksAndLog(t *testing.T) {
	var buf bytes.Buffer
	var decisions, results []string
	g := newGate(t, func(c *setup) {
		c.Log = logTo(&buf)
		c.Tokens = tokens("t0ken-one", "t0ken-two")
		c.ForwardSigningKey = secret("whsec_c2lnbmluZy1rZXk=")
		c.URL, _ = url.Parse("http://user:passw0rd@receiver.test/hook")
		c.Answered = func(o Outcome) { decisions = append(decisions, o.Decision) }
		c.Tried = func(result string, _ int, _ time.Duration) { results = append(results, result) }
		c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if len(results) == 1 {
				return nil, errors.New("connection refused")
			}
			if len(results) == 3 {
				return respond(400, "ada@example.com is unknown"), nil
			}
			return respond(200, ""), nil
		})
	})
	for _, r := range []*http.Request{
		request(documented),
		request(documented, "Authorization", "Bearer wr0ng"),
		httptest.NewRequest("POST", "/webhooks/t0ken-one", strings.NewReader(documented)),
		httptest.NewRequest("POST", "/webhooks/wr0ng", strings.NewReader(documented)),
		request(documented, "X-Webhook-Token", "t0ken-two"),
		request(strings.Replace(documented, "4711", "4712", 1), "X-Webhook-Token", "t0ken-two"),
		request(strings.Replace(documented, "4711", `["ada@example.com"]`, 1), "X-Webhook-Token", "t0ken-two"),
		request(snapshotOf("acme-prod", "x"), "X-Webhook-Token", "t0ken-two"),
		request(strings.Replace(documented, `"quantity":25`, `"quantity":"ada@example.com"`, 1), "X-Webhook-Token", "t0ken-two"),
	} {
		serve(t, g, r)
	}
	want := "[rejected rejected forwarded rejected duplicate forwarded rejected failed rejected]"
	if got := fmt.Sprint(decisions); got != want {
		t.Errorf("decisions %v, want %v", got, want)
	}
	if got := fmt.Sprint(results); got != "[ok error ok status]" {
		t.Errorf("results %v", got)
	}
	for _, leak := range []string{"t0ken", "wr0ng", "whsec", "c2lnbmlu", "passw0rd", "example.com", "Ada", "Acme"} {
		if strings.Contains(buf.String(), leak) {
			t.Errorf("the log shows %q:\n%s", leak, &buf)
		}
	}
	for _, line := range []string{"tenant=acme-prod", "decision=duplicate", "receiver_status=400", "connection refused", "token is missing or wrong", "/payload/tenant/id must be a", "quantity must be an integer or null, not a string"} {
		if !strings.Contains(buf.String(), line) {
			t.Errorf("the log does not show %q:\n%s", line, &buf)
		}
	}
}
