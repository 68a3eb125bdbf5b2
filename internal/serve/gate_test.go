package serve_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// gated is a program with a gate in front of a receiver.
type gated struct {
	*testkit.Usher
	receiver *sandbox.Receiver
	url      string // of the webhooks
}

func startGate(t *testing.T, extra ...string) *gated {
	t.Helper()
	r := sandbox.NewReceiver()
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	p := start(t, newService(t).Environ(append([]string{
		"USHER_WEBHOOK_FORWARD_URL=" + srv.URL + "/provisioning", "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
	}, extra...)...))
	return &gated{p, r, p.URL(t, "webhooks") + "/webhooks"}
}

// Without a check of its senders, a gate on loopback takes nothing that a web page sends. With one, the check
// decides alone.
func TestGateWithoutACheck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		settings           []string
		foreign, page, own int // the status of a foreign Host, of a page of another site, and of a program
	}{
		{nil, 421, 403, 200},
		{[]string{"USHER_WEBHOOK_INSECURE=true"}, 421, 403, 200},
		{[]string{"USHER_ALLOWED_HOSTS=gate.example"}, 200, 403, 200},
		{[]string{"USHER_WEBHOOK_LISTEN=0.0.0.0:0", "USHER_WEBHOOK_INSECURE=true"}, 200, 403, 200},
	} {
		g := startGate(t, append(tc.settings, "USHER_WEBHOOK_DEDUP_WINDOW=0")...)
		send := func(host, origin string) int {
			req, err := http.NewRequest("POST", g.url, strings.NewReader(snapshot("acme", 5)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "text/plain")
			if req.Host = host; origin != "" {
				req.Header.Set("Origin", origin)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode
		}
		got := [3]int{send("gate.example", ""), send("", "https://evil.example"), send("", "")}
		if want := [3]int{tc.foreign, tc.page, tc.own}; got != want {
			t.Errorf("%v: %v, want %v", tc.settings, got, want)
		}
		if n := len(g.receiver.Deliveries()); n != strings.Count(fmt.Sprint(got), "200") {
			t.Errorf("%v: %d deliveries", tc.settings, n)
		}
	}
}

// A sender that hangs up does not stop a delivery, and neither does a shutdown.
func TestGateDrains(t *testing.T) {
	t.Parallel()
	g := startGate(t, "USHER_SHUTDOWN_GRACE=10s")
	entered := make(chan struct{})
	g.receiver.OnDelivery = func(*http.Request, []byte) { close(entered) }
	g.receiver.Fail(sandbox.Fault{Delay: 400 * time.Millisecond})
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", g.url, strings.NewReader(snapshot("acme", 5)))
		_, _ = http.DefaultClient.Do(req)
	}()
	<-entered
	hangUp()
	g.Stop()
	<-g.Ended
	if d := g.receiver.Deliveries(); len(d) != 1 || d[0].Status != 200 {
		t.Errorf("%+v", d)
	}
}

// The senders of deliveries that are cut off at the end of the grace get an answer.
func TestGateCuts(t *testing.T) {
	t.Parallel()
	g := startGate(t, "USHER_SHUTDOWN_GRACE=100ms")
	const senders = 20
	entered := make(chan struct{}, senders)
	g.receiver.OnDelivery = func(*http.Request, []byte) { entered <- struct{}{} }
	g.receiver.Fail(sandbox.Fault{Hang: true})
	answers := make(chan string, senders)
	for i := range senders {
		go func() {
			resp, err := http.Post(g.url, "application/json", strings.NewReader(snapshot(fmt.Sprint("tenant", i), 5)))
			if err != nil {
				answers <- err.Error()
				return
			}
			resp.Body.Close()
			answers <- resp.Status + " " + resp.Header.Get("Retry-After")
		}()
	}
	for range senders {
		<-entered
	}
	g.Stop()
	for range senders {
		if got := <-answers; got != "503 Service Unavailable 5" {
			t.Error(got)
		}
	}
	<-g.Ended
}

func TestGateTLS(t *testing.T) {
	t.Parallel()
	certFile, keyFile := testkit.Certificate(t, "127.0.0.1")
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	g := startGate(t, "USHER_WEBHOOK_TLS_CERT_FILE="+certFile, "USHER_WEBHOOK_TLS_KEY_FILE="+keyFile)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	resp, err := client.Post(g.url, "application/json", bytes.NewReader([]byte(snapshot("acme", 5))))
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
}

const checkout = `{"type":"Checkout","payload":{"tenant":{"code":"acme"},"cart":[1]}}`

// An event of a sync type gets the receiver's own answer, and usher stores nothing of it, although there is an
// inbox.
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
	_, list := get(t, p.URL(t, "admin")+"/api/webhooks")
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

// If the sender of a sync event hangs up, the receiver sees that its connection ends.
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
