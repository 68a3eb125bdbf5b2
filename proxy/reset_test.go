package proxy

import (
	"io"
	"net"
	"net/http"
	"testing"
)

// A service that resets the connection was not slow: that is 502, and not 504.
func TestResetIsNoTimeout(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}))
	if status, answer := r.post(t, query); status != 502 || code(t, answer) != "UPSTREAM_UNREACHABLE" {
		t.Errorf("%d %s", status, answer)
	}
}
