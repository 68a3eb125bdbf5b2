package webhookgate

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/wire"
)

// What may no longer be sent, or not to its end, does not arrive; however far it has got.
func TestFence(t *testing.T) {
	for name, start := range map[string]func(http.Handler) *httptest.Server{
		"plain": httptest.NewServer, "TLS": httptest.NewTLSServer,
	} {
		t.Run(name, func(t *testing.T) {
			var arrived atomic.Int32
			server := start(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					arrived.Add(1)
				}
			}))
			defer server.Close()
			transport := wire.New(wire.Config{TLS: server.Client().Transport.(*http.Transport).TLSClientConfig, MaxIdle: 1, IdleTimeout: time.Minute})
			defer transport.CloseIdleConnections()
			for n, step := range []struct {
				size, looks int // how often it may
				arrives     bool
			}{
				{2, 0, false},
				{2, 1, true},
				{2, 1, true}, // on the connection that is there
				{2, 0, false},
				{1 << 20, 1, false},
				{1 << 20, 5, false},
				{1 << 20, 1000, true},
				{2, 1, true},
			} {
				arrived.Store(0)
				looks := 0
				ctx := Fenced(t.Context(), func() bool { looks++; return looks <= step.looks })
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, bytes.NewReader(make([]byte, step.size)))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := transport.RoundTrip(req)
				if err == nil {
					resp.Body.Close()
				}
				if got := arrived.Load() == 1; (err == nil) != step.arrives || got != step.arrives {
					t.Errorf("step %d: arrived %v, %v", n, got, err)
				}
			}
		})
	}
}
