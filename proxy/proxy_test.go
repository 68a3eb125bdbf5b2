package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/guard"
	"usher/internal/sandbox"
	"usher/internal/testkit"
	"usher/internal/wire"
	"usher/tokens"
)

const (
	replayLimit = 64 << 10
	query       = `{"query":"{ accounts(limit: 1) { id name } }"}`
)

func TestMain(m *testing.M) { testkit.Main(m) }

// rig is a local port in front of a billing service.
type rig struct {
	*httptest.Server
	server   *guard.Server // what runs in it
	handler  *Handler
	billing  *sandbox.Billing
	log      *logBuffer
	replayed atomic.Int64
	statuses sync.Map // of what Finished was told, status → *atomic.Int64
}

// newUpstream has the connections that usher has.
func newUpstream(cfg wire.Config) *wire.Client {
	cfg.MaxIdle, cfg.IdleTimeout = 4096, 50*time.Second
	return wire.New(cfg)
}

// newRig runs a port in front of a sandbox; graphql, if not nil, answers the calls
// in its stead.
func newRig(t *testing.T, graphql http.Handler, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{log: new(logBuffer)}
	r.billing = sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "s3cret", Scopes: []string{"standard:read"}})
	mux := http.NewServeMux()
	mux.Handle("/oauth/token", r.billing)
	if graphql == nil {
		graphql = r.billing
	}
	mux.Handle("/", graphql)
	service := httptest.NewServer(mux)
	t.Cleanup(service.Close)

	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	forTokens, upstream := newUpstream(wire.Config{Timeout: 5 * time.Second}), newUpstream(wire.Config{Timeout: 5 * time.Second})
	t.Cleanup(forTokens.CloseIdleConnections)
	t.Cleanup(upstream.CloseIdleConnections)
	source := tokens.NewSource(&tokens.Client{
		URL: service.URL + "/oauth/token", ID: "app", Secret: func() string { return "s3cret" },
		Scope: "standard:read", HTTP: forTokens,
	}, log)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })

	target, err := url.Parse(service.URL + "/graphql")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Name: "main", Target: target, Source: source, Upstream: upstream, ReplayLimit: replayLimit, ReplayMemory: NewMemory(32 << 20),
		Hosts: guard.NewHosts("127.0.0.1:0", nil, false), Log: log,
		Started:  func() {},
		Replayed: func() { r.replayed.Add(1) },
		Finished: func(status int, _ time.Duration) {
			n, _ := r.statuses.LoadOrStore(status, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r.handler = New(cfg)
	r.server = guard.NewServer(r.handler, nil, log)
	r.Server = httptest.NewUnstartedServer(nil)
	r.Config = &r.server.Server
	r.Start()
	t.Cleanup(r.Close)
	return r
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func (r *rig) post(t *testing.T, body string) (status int, answer string) {
	t.Helper()
	resp, err := http.Post(r.URL+"/graphql", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return read(t, resp)
}

func read(t *testing.T, resp *http.Response) (int, string) {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// code is extensions.code of an answer of usher's own.
func code(t *testing.T, answer string) string {
	t.Helper()
	var r response
	if err := json.Unmarshal([]byte(answer), &r); err != nil || len(r.Errors) != 1 || r.Errors[0].Message == "" {
		t.Fatalf("not an answer of usher's: %s", answer)
	}
	return r.Errors[0].Extensions.Code
}

// What passes and what does not, seen from the service.
func TestWhatLeaves(t *testing.T) {
	var seen *http.Request
	r := newRig(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r }),
		func(c *Config) { c.Key = func() string { return "the-key" } })
	req, _ := http.NewRequest("POST", r.URL+"/graphql?a=1;b=%zz&c=%&&d", strings.NewReader(query))
	req.Header = http.Header{
		"Authorization":       {"Bearer the-key"},
		"X-Usher-Key":         {"the-key"},
		"x_usher_key":         {"the-key"},
		"Connection":          {"authorization, X-Drop-Me, Upgrade, HTTP2-Settings"},
		"X-Drop-Me":           {"1"},
		"Upgrade":             {"h2c"},
		"Http2-Settings":      {"AAMAAABkAAQAAP__"},
		"Keep-Alive":          {"5"},
		"Proxy-Authorization": {"Basic x"},
		"Proxy_Authorization": {"Basic x"},
		"Te":                  {"trailers"},
		"Forwarded":           {"for=1.2.3.4"},
		"X-Forwarded-For":     {"1.2.3.4"},
		"X-Forwarded-Port":    {"1"},
		"Via":                 {"1.1 proxy"},
		"X_forwarded_host":    {"evil"},
		"X-Real-Ip":           {"1.2.3.4"},
		"Content_Length":      {"7"},
		"Cookie":              {"a=b"},
		"X-Custom":            {"one", "two"},
		"X_custom":            {"three"},
		"Content-Type":        {"application/graphql+json"},
	}
	resp, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if got := seen.URL.RawQuery; got != "a=1;b=%zz&c=%&&d" {
		t.Errorf("query %q", got)
	}
	auth := seen.Header.Get("Authorization")
	if !strings.HasPrefix(auth, "Bearer ") || strings.Contains(auth, "the-key") || len(seen.Header["Authorization"]) != 1 {
		t.Errorf("Authorization %q", seen.Header["Authorization"])
	}
	if seen.Header.Get("User-Agent") != "Go-http-client/1.1" { // the test's client sent it
		t.Errorf("User-Agent %q", seen.Header.Get("User-Agent"))
	}
	if strings.HasPrefix(r.URL, "http://"+seen.Host) {
		t.Errorf("Host is the port's: %q", seen.Host)
	}
	want := map[string]int{"Authorization": 1, "User-Agent": 1, "Cookie": 1, "X-Custom": 2, "X_custom": 1, "Content-Type": 1, "Content-Length": 1}
	for name, values := range seen.Header {
		if len(values) != want[name] {
			t.Errorf("%s: %q reached the service", name, values)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("did not reach the service: %v", want)
	}
}

func TestCallerHangsUpIsCounted(t *testing.T) {
	entered := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		silent(w, r)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	req, _ := http.NewRequestWithContext(ctx, "POST", r.URL+"/graphql", strings.NewReader(query))
	if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.Close() // waits for the handler
	if n, ok := r.statuses.Load(statusGone); !ok || n.(*atomic.Int64).Load() != 1 {
		t.Errorf("not counted as gone: %s", r.log.String())
	}
}
