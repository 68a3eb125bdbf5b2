package serve_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
)

const checkout = `{"type":"Checkout","payload":{"tenant":{"code":"acme"},"cart":[1]}}`

// A question comes back with the receiver's own answer, and leaves nothing behind, with a
// durable inbox beside it.
func TestSyncTypeWithAnInbox(t *testing.T) {
	t.Parallel()
	const no = `["no seats left",{"limit":5}]`
	asked := 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != checkout {
			return // a delivery of the inbox's
		}
		asked++
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(403)
		io.WriteString(w, no)
	}))
	defer receiver.Close()
	p := start(t, gateway(receiver.URL, "USHER_WEBHOOK_SYNC_TYPES=Checkout", "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db")))
	url := p.URL(t, "webhooks") + "/webhooks"
	for range 2 {
		resp, err := http.Post(url, "application/json", strings.NewReader(checkout))
		resp, body := whole(t, resp, err)
		if resp.StatusCode != 403 || body != no || resp.Header.Get("Content-Type") != "application/problem+json" || resp.Header.Get("Usher-Decision") != "forwarded" {
			t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
		}
	}
	if status, decision, answer := post(t, url, snapshot("acme", 5)); status != 200 || decision != "queued" {
		t.Errorf("%d %s", status, answer)
	}
	_, list := get(t, p.URL(t, "admin")+"/api/webhooks?inbox=true")
	if asked != 2 || strings.Contains(list, "Checkout") || !strings.Contains(list, "acme") {
		t.Errorf("asked %d times; the inbox has %s", asked, list)
	}
	for _, page := range []string{"/", "/webhooks", "/tenant?platform=crm&code=acme"} {
		if status, body := get(t, p.URL(t, "admin")+page); status != 200 || strings.Contains(body, "no seats left") {
			t.Errorf("%s: %d %s", page, status, body)
		}
	}
	if log := p.Stderr.String(); strings.Contains(log, "no seats left") {
		t.Error("an answer of the receiver's is in the log")
	}
}

// Over a real connection: the receiver sees that its asker has gone.
func TestSyncTypeHangUp(t *testing.T) {
	t.Parallel()
	arrived, gone := make(chan struct{}), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(gone)
	}))
	defer receiver.Close()
	p := start(t, gateway(receiver.URL, "USHER_WEBHOOK_SYNC_TYPES=Checkout", "USHER_WEBHOOK_TIMEOUT=1h"))
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", p.URL(t, "webhooks")+"/webhooks", strings.NewReader(checkout))
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-arrived; hangUp() }()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		t.Errorf("answered %d", resp.StatusCode)
	}
	<-gone
	testkit.Eventually(t, "logged", func() bool { return strings.Contains(p.Stderr.String(), "the sender hung up") })
}
