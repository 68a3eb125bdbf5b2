package proxy

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"usher/internal/guard"
	"usher/internal/sandbox"
	"usher/internal/wire"
	"usher/tokens"
)

// instant is a service that answers at once, without a connection.
type instant struct{ answer []byte }

func (s instant) Do(req *http.Request, _ wire.Call) (*http.Response, error) { return s.RoundTrip(req) }

func (s instant) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil, err
	}
	req.Body.Close()
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header:        http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(s.answer))}},
		ContentLength: int64(len(s.answer)),
		Body:          io.NopCloser(bytes.NewReader(s.answer)),
	}, nil
}

// liveSource is a source that has a token.
func liveSource(tb testing.TB) *tokens.Source {
	tb.Helper()
	service := httptest.NewServer(sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "s3cret", Scopes: []string{"standard:read"}}))
	tb.Cleanup(service.Close)
	source := tokens.NewSource(&tokens.Client{
		URL: service.URL + "/oauth/token", ID: "app", Secret: func() string { return "s3cret" }, Scope: "standard:read",
		HTTP: newUpstream(wire.Config{Timeout: time.Second}), UserAgent: "test",
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	go source.Run(ctx)
	if _, err := source.Ready(ctx); err != nil {
		tb.Fatal(err)
	}
	return source
}

// benchConfig is that of a port whose service answers at once.
func benchConfig(tb testing.TB) Config {
	target, err := url.Parse("http://billing.test/graphql")
	if err != nil {
		tb.Fatal(err)
	}
	return Config{
		Name: "main", Target: target, Source: liveSource(tb),
		Upstream: instant{bytes.Repeat([]byte("x"), 1<<10)}, ReplayLimit: 1 << 20,
		Hosts: guard.NewHosts("127.0.0.1:8080", nil, false), Log: slog.New(slog.DiscardHandler),
		Started: func() {}, Finished: func(int, time.Duration) {}, Replayed: func() {},
	}
}

// blank is a ResponseWriter that keeps nothing.
type blank struct{ header http.Header }

func (b *blank) Header() http.Header               { return b.header }
func (b *blank) Write(p []byte) (int, error)       { return len(p), nil }
func (b *blank) WriteHeader(int)                   {}
func (b *blank) SetReadDeadline(_ time.Time) error { return nil }

// benchRequest is a call as net/http hands it to a handler, but for its body.
func benchRequest(tb testing.TB) *http.Request {
	r := httptest.NewRequestWithContext(tb.Context(), "POST", "/graphql", nil)
	r.Host = "127.0.0.1:8080"
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(query))}, "User-Agent": {"test"}, "Accept": {"*/*"},
	}
	return r
}

// renew makes r a request that nobody has read yet.
func renew(r *http.Request, body *strings.Reader) {
	body.Reset(query)
	r.Body, r.ContentLength = io.NopCloser(body), int64(len(query))
}

// BenchmarkHandler is the whole of a port but its connections, beside a bare
// httputil.ReverseProxy: the difference is usher's own.
func BenchmarkHandler(b *testing.B) {
	cfg := benchConfig(b)
	bare := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(cfg.Target)
			r.Out.Header.Set("Authorization", "Bearer token")
		},
		Transport: cfg.Upstream.(http.RoundTripper), BufferPool: buffers{},
	}
	for _, bench := range []struct {
		name    string
		handler http.Handler
	}{{"usher", New(cfg)}, {"bare ReverseProxy", bare}} {
		b.Run(bench.name, func(b *testing.B) {
			w, r, body := &blank{make(http.Header)}, benchRequest(b), new(strings.Reader)
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				renew(r, body)
				bench.handler.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkGuard is what stands before a call.
func BenchmarkGuard(b *testing.B) {
	cfg := benchConfig(b)
	for _, bench := range []struct {
		name, host string
		key        func() string
	}{{"address", "127.0.0.1:8080", nil}, {"name", "localhost:8080", nil}, {"key", "127.0.0.1:8080", func() string { return "k3y" }}} {
		b.Run(bench.name, func(b *testing.B) {
			cfg.Key = bench.key
			h, r := New(cfg), benchRequest(b)
			r.Host = bench.host
			r.Header.Set("Authorization", "Bearer k3y")
			b.ReportAllocs()
			for b.Loop() {
				if p := h.check(r); p != nil {
					b.Fatal(p.code)
				}
			}
		})
	}
}

func TestGuardAllocatesNothing(t *testing.T) {
	cfg := benchConfig(t)
	cfg.Key = func() string { return "k3y" }
	h, r := New(cfg), benchRequest(t)
	r.Header.Set("Authorization", "Bearer k3y")
	if n := testing.AllocsPerRun(100, func() { _ = h.check(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkTransport is the token's way into a call.
func BenchmarkTransport(b *testing.B) {
	cfg := benchConfig(b)
	t := &transport{cfg}
	call, body := benchRequest(b), new(strings.Reader)
	b.ReportAllocs()
	for b.Loop() {
		renew(call, body)
		r := call.WithContext(httptrace.WithClientTrace(b.Context(), &httptrace.ClientTrace{})) // as ReverseProxy does
		resp, err := t.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

// BenchmarkPort is a port with its connections, caller and service included.
func BenchmarkPort(b *testing.B) {
	answer := bytes.Repeat([]byte("x"), 1<<10)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(answer) }))
	b.Cleanup(service.Close)
	cfg := benchConfig(b)
	cfg.Upstream = newUpstream(wire.Config{Timeout: time.Second})
	cfg.Target.Host = service.Listener.Addr().String()
	port := httptest.NewServer(New(cfg))
	b.Cleanup(port.Close)
	client := &http.Client{Transport: &http.Transport{}}
	b.Cleanup(client.CloseIdleConnections)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := client.Post(port.URL+"/graphql", "application/json", strings.NewReader(query))
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 1<<10 {
			b.Fatal(n, err)
		}
		resp.Body.Close()
	}
}
