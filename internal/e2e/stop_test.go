//go:build unix

package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"usher/internal/testkit"
)

// Servers of the inbox that are stuck do not keep usher from ending: neither a webhook that they do
// not take, nor a delivery whose outcome they do not note, nor the leases that they do not take back.
func TestStopWithStuckServers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	var hangs atomic.Bool
	delivered, entered := make(chan struct{}, 1), make(chan struct{}, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the caller has gone
		if hangs.Load() {
			entered <- struct{}{}
			<-r.Context().Done()
			return
		}
		delivered <- struct{}{}
	}))
	t.Cleanup(receiver.Close)
	u := startProcess(t, testkit.NewService(t).Environ("USHER_WEBHOOK_FORWARD_URL="+receiver.URL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX="+c.wires().url(), "USHER_SHUTDOWN_GRACE=2s"))
	u.Ready(t)
	gate := u.URL(t, "webhooks") + "/webhooks"
	testkit.Post(t, gate, testkit.Snapshot("acme", 1))
	<-delivered
	hangs.Store(true)
	testkit.Post(t, gate, testkit.Snapshot("acme", 2))
	<-entered
	for _, n := range c.nodes {
		if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	sent := make(chan struct{})
	go func() {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(sent) }})
		req, err := http.NewRequestWithContext(ctx, "POST", gate, strings.NewReader(testkit.Snapshot("other", 1)))
		_ = do(req, err) // 503, or a connection that is cut off
	}()
	<-sent
	u.Signal(t, syscall.SIGTERM)
	<-u.Ended
	if u.Code != 0 {
		t.Errorf("exit code %d", u.Code)
	}
}
