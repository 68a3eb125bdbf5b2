package serve_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// During the delay every listener answers on the connections that there are, and says
// with each answer that it is the connection's last: also where the call came before.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ("USHER_SHUTDOWN_DELAY=5s", "USHER_PORTS_0_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1"))
	p.Ready(t)
	names := []string{"main", "0", "webhooks", "admin"}
	var conns []net.Conn
	for _, name := range names {
		conn := dialURL(t, p.URL(t, name))
		if resp := askOn(t, conn, "GET /healthz"); resp.Close {
			t.Errorf("%s: closes its connection in everyday life", name)
		}
		conns = append(conns, conn)
	}
	entered := make(chan struct{}, 1)
	s.OnCall = func(*http.Request, []byte) { entered <- struct{}{} }
	s.FailGraphQL(sandbox.Fault{Delay: time.Second, Times: 1})
	slow := make(chan *http.Response, 1)
	go func() { resp, _ := call(t, p.URL(t, "main")); slow <- resp }()
	<-entered
	p.Stop()
	testkit.Eventually(t, "shutting down", func() bool { return strings.Contains(p.Stderr.String(), "shutting down") })
	if resp := <-slow; resp.StatusCode != 200 || !resp.Close {
		t.Errorf("a call under way: %d, closed: %v", resp.StatusCode, resp.Close)
	}
	for i, conn := range conns {
		if resp := askOn(t, conn, "GET /healthz"); !resp.Close {
			t.Errorf("%s: %d, and the connection is kept", names[i], resp.StatusCode)
		}
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: %d bytes, %v after the last answer", names[i], n, err)
		}
	}
	wantCall(t, p.URL(t, "main"), 200, "accounts")
	<-p.Ended
}

// In the grace, too.
func TestDrainInTheGrace(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ())
	p.Ready(t)
	entered := make(chan struct{}, 1)
	s.OnCall = func(*http.Request, []byte) { entered <- struct{}{} }
	s.FailGraphQL(sandbox.Fault{Delay: time.Second, Times: 1})
	slow := make(chan *http.Response, 1)
	go func() { resp, _ := call(t, p.URL(t, "main")); slow <- resp }()
	<-entered
	p.Stop()
	if resp := <-slow; resp.StatusCode != 200 || !resp.Close {
		t.Errorf("a call under way: %d, closed: %v", resp.StatusCode, resp.Close)
	}
}

func dialURL(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// askOn sends a request without a body on a connection that is already there.
func askOn(t *testing.T, conn net.Conn, line string) *http.Response {
	t.Helper()
	_, err := io.WriteString(conn, line+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp
}
