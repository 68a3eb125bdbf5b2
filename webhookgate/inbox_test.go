package webhookgate

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
)

// What may no longer be sent, or not to its end, does not arrive. The gate's own transport
// asks; internal/wire tests how often.
func TestFence(t *testing.T) {
	var arrived atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			arrived.Add(1)
		}
	}))
	defer receiver.Close()
	g := newGate(t, func(c *Config) {
		c.Transport = nil
		c.ForwardURL, _ = url.Parse(receiver.URL)
	})
	defer g.CloseIdleConnections()
	for n, step := range []struct {
		size, looks int // how often it may
		arrives     bool
	}{
		{2, 0, false},
		{2, 1, true},
		{2, 1, true}, // on the connection that is there
		{1 << 20, 1, false},
		{1 << 20, 1000, true},
	} {
		arrived.Store(0)
		looks := 0
		ctx := Fenced(t.Context(), func() bool { looks++; return looks <= step.looks })
		a := g.Try(ctx, &Webhook{Header: make(http.Header), Body: make([]byte, step.size)})
		if got := arrived.Load() == 1; got != step.arrives || a.Accepted() != step.arrives || !a.Accepted() && !errors.Is(a.Err, errFenced) {
			t.Errorf("step %d: arrived %v, %+v", n, got, a)
		}
	}
}
