package inbox

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// What may no longer be sent by the time that there is a connection is not sent.
func TestFence(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	for n, allowed := range []bool{false, true, true, false, false, true} {
		requests.Store(0)
		ctx := fenced(t.Context(), func() bool { return allowed })
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.GetBody = nil // as the gate has it: else it would be sent again
		resp, err := transport.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if sent := requests.Load() == 1; (err == nil) != allowed || sent != allowed {
			t.Errorf("request %d: sent %v, %v", n, sent, err)
		}
	}
}
