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
	"sync"
	"sync/atomic"
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

// A, A, B, A: the second A is a duplicate, the third is a change.
func TestGateABA(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	for i, step := range []struct {
		users    int
		decision string
	}{{5, "forwarded"}, {5, "duplicate"}, {10, "forwarded"}, {5, "forwarded"}, {5, "duplicate"}} {
		if status, decision, answer := post(t, g.url, snapshot("acme", step.users)); status != 200 || decision != step.decision {
			t.Errorf("step %d: %d %s %s", i, status, decision, answer)
		}
	}
	if n := len(g.receiver.Deliveries()); n != 3 {
		t.Errorf("%d deliveries, want 3", n)
	}
	_, metrics := get(t, g.URL(t, "admin")+"/metrics")
	for _, want := range []string{
		`usher_webhook_received_total{decision="forwarded"} 3`, `usher_webhook_received_total{decision="duplicate"} 2`,
		`usher_webhook_attempts_total{receiver="main",result="ok"} 3`, `usher_webhook_duration_seconds_count 5`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
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
		{[]string{"USHER_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8"}, 200, 403, 200},
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

// 50 webhooks of 50 tenants arrive at a limit of 10, while the receiver is slow. 10 are accepted, 40 get a 503,
// and none is lost silently.
func TestGateInflightCap(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var arrived atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		arrived.Add(1)
		<-release
	}))
	defer receiver.Close()
	p := start(t, newService(t).Environ("USHER_WEBHOOK_FORWARD_URL="+receiver.URL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_MAX_INFLIGHT=10"))
	url := p.URL(t, "webhooks") + "/webhooks"
	var ok, busy atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			resp, err := http.Post(url, "application/json", strings.NewReader(snapshot(fmt.Sprint("tenant-", i), 5)))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			switch {
			case resp.StatusCode == 200:
				ok.Add(1)
			case resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
				if busy.Add(1) == 40 {
					close(release)
				}
			default:
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 10 || busy.Load() != 40 || arrived.Load() != 10 {
		t.Errorf("%d accepted, %d told 503, %d arrived; want 10, 40, 10", ok.Load(), busy.Load(), arrived.Load())
	}
}

func TestGateSecretsAndRejections(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("0ldtoken, n3wtoken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startGate(t, "USHER_WEBHOOK_TOKEN_FILE="+file)
	for _, tc := range []struct {
		name, path, body string
		header           []string
		status           int
		want             string
	}{
		{"none", "", snapshot("a", 1), nil, 401, "rejected"},
		{"in the path", "/0ldtoken", snapshot("a", 1), nil, 200, "forwarded"},
		{"wrong in the path", "/wr0ng", snapshot("a", 1), nil, 401, ""},
		{"bearer", "", snapshot("a", 2), []string{"Authorization", "Bearer n3wtoken"}, 200, ""},
		{"header", "", snapshot("a", 3), []string{"X-Webhook-Token", "n3wtoken"}, 200, ""},
		{"no JSON", "/n3wtoken", "{", nil, 400, ""},
		{"a name twice", "/n3wtoken", `{"type":"x","type":"TenantProvisioningChange"}`, nil, 400, ""},
		{"no tenant code", "/n3wtoken", `{"type":"TenantProvisioningChange","payload":{"tenant":{},"change":{}}}`, nil, 422, `"path":"/payload/tenant/code"`},
		{"other type", "/n3wtoken", `{"type":"Other","payload":{}}`, nil, 422, `"path":"/type"`},
		{"too large", "/n3wtoken", strings.Repeat(" ", 1<<20) + "{}", nil, 413, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, decision, answer := post(t, g.url+tc.path, tc.body, tc.header...)
			if status != tc.status || !strings.Contains(answer, tc.want) || decision != map[bool]string{true: "forwarded", false: "rejected"}[status == 200] {
				t.Errorf("%d %s %s", status, decision, answer)
			}
		})
	}
	// Rotation: the old secret is taken out of the file.
	if err := os.WriteFile(file, []byte("n3wtoken"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "rotated", func() bool { status, _, _ := post(t, g.url+"/0ldtoken", snapshot("b", 1)); return status == 401 })
	g.Stop()
	<-g.Ended
	for _, secret := range []string{"0ldtoken", "n3wtoken", "wr0ng"} {
		if strings.Contains(g.Stderr.String(), secret) {
			t.Errorf("%s is in the log", secret)
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
