package webhookgate

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/receiver"
	"usher/internal/signature"
)

// documented is a webhook with all that the billing service documents.
var documented = func() string {
	body, err := os.ReadFile("../internal/content/testdata/documented.json")
	if err != nil {
		panic(err)
	}
	return string(body)
}()

// snapshot is a small webhook of a tenant; what tells two of them apart is name.
func snapshotOf(tenant, name string) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q},"change":{"features":[{"code":%q}]}}}`, tenant, name)
}

// roundTrip is a receiver that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// respond makes a receiver's answer.
func respond(status int, body string, header ...string) *http.Response {
	h := make(http.Header)
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

// counting is a receiver that takes as long as it is told, and answers 200.
type counting struct {
	takes time.Duration

	mu     sync.Mutex
	bodies []string
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(c.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies = append(c.bodies, string(body))
	return respond(200, ""), nil
}

func (c *counting) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.bodies)
}

// setup is a gate's configuration, what its rules come from, and its receivers.
type setup struct {
	Config
	Types              []string
	Schema             []byte
	*receiver.Receiver                      // the main one; nil: none
	Further            []*receiver.Receiver // those without a timeout have the main one's
}

// newGate is a gate with the defaults of the settings, before a receiver that says 200, unless change says
// otherwise.
func newGate(t testing.TB, change func(*setup)) *Gate {
	t.Helper()
	sha256, _ := signature.ByName("sha256")
	main := &receiver.Receiver{Name: receiver.Main, URL: address("receiver.test"), Timeout: 10 * time.Second, Transport: new(counting)}
	c := &setup{
		Config: Config{
			Path: "/webhooks", Credentials: receiver.Credentials{SignatureHeader: "X-Signature", HMAC: sha256}, MaxBody: 1 << 20,
			DedupSize: 10000, DedupWindow: 10 * time.Minute, Tries: 3, MaxInflight: 256, Log: slog.New(slog.DiscardHandler),
		},
		Types:    []string{content.TenantProvisioningChange},
		Receiver: main,
	}
	if change != nil {
		change(c)
	}
	var all []*receiver.Receiver
	if c.Receiver != nil {
		all = append(all, c.Receiver)
	}
	for _, r := range c.Further {
		r.Timeout = cmp.Or(r.Timeout, main.Timeout)
		all = append(all, r)
	}
	for _, r := range all {
		r.Service = c.Credentials
		if r.Transport == nil {
			r.Transport = receiver.NewTransport(c.MaxInflight)
		}
	}
	c.Receivers = receiver.NewSet(all...)
	var err error
	if c.Rules, err = content.NewRules(c.Types, c.Schema); err != nil {
		t.Fatal(err)
	}
	return New(c.Config)
}

func address(host string) *url.URL { return &url.URL{Scheme: "http", Host: host, Path: "/hook"} }

// reply is an answer as a sender sees it.
type reply struct {
	*httptest.ResponseRecorder
	answer
}

func (r reply) String() string {
	return fmt.Sprintf("%d %s %s", r.Code, r.ResponseRecorder.Header().Get("Usher-Decision"), r.Body)
}

// serve hands a request to the gate, and checks what goes for every answer.
func serve(t testing.TB, g *Gate, r *http.Request) reply {
	t.Helper()
	rec := httptest.NewRecorder()
	g.ServeHTTP(rec, r)
	got := reply{ResponseRecorder: rec}
	if ct := rec.Header().Get("Content-Type"); ct != "application/json" {
		t.Errorf("Content-Type is %q", ct)
	}
	decision := rec.Header().Get("Usher-Decision")
	if rec.Body.String() == "[\""+forBuyers+"\"]\n" {
		got.Decision, got.Error = decision, forBuyers
	} else if err := json.Unmarshal(rec.Body.Bytes(), &got.answer); err != nil {
		t.Errorf("answer %q: %v", rec.Body, err)
	}
	if decision != got.Decision {
		t.Errorf("Usher-Decision is %q, the body says %q", decision, got.Decision)
	}
	switch {
	case rec.Code == 200 && (decision == forwarded || decision == duplicate):
	case rec.Code/100 == 4 && decision == rejected && got.Error != "":
	case rec.Code/100 == 5 && decision == failed && got.Error != "":
	default:
		t.Errorf("status and decision don't go together: %v", got)
	}
	if retry := rec.Header().Get("Retry-After"); (rec.Code == 503) != (retry != "") {
		t.Errorf("%d with Retry-After %q", rec.Code, retry)
	}
	return got
}

// post sends body to the gate's default path.
func post(t testing.TB, g *Gate, body string, header ...string) reply {
	t.Helper()
	return serve(t, g, request(body, header...))
}

func request(body string, header ...string) *http.Request {
	r := httptest.NewRequest("POST", "/webhooks", strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// logTo makes a logger that writes into a buffer.
func logTo(buf *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(buf, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func secret(s string) func() string    { return func() string { return s } }
func tokens(s ...string) func() string { return secret(strings.Join(s, ",")) }

func sha256MAC(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return mac.Sum(nil)
}
