package serve_test

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/serve"
	"usher/internal/testkit"
)

// In a pod the kubelet's probes are answered by address. After SIGTERM, for the delay, usher is unready, but serves on:
// each listener answers on open connections, and closes them after that. Kubernetes' variables are nobody's mistake.
func TestPod(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.FailTokens(sandbox.Fault{Status: 503})
	cmd := exec.Command(testkit.Binary(t))
	cmd.Env = s.Environ("USHER_SERVICE_HOST=10.0.0.1", "USHER_SERVICE_PORT=8080", "USHER_PORT=tcp://10.0.0.1:8080",
		"USHER_ADMIN_LISTEN=0.0.0.0:0", "USHER_ADMIN_TOKEN=adm1n-token-adm1n", "USHER_SHUTDOWN_DELAY=1h",
		"USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1")
	p := testkit.Start(t, cmd)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.URL(t, "admin"), "http://"))
	admin := "127.0.0.1:" + port
	probe := func(path string) (int, string) {
		req, _ := http.NewRequest("GET", "http://"+admin+path, nil)
		req.Host = "10.1.2.3:" + port
		resp, err := http.DefaultClient.Do(req)
		resp, body := whole(t, resp, err)
		return resp.StatusCode, body
	}
	if status, _ := probe("/healthz"); status != 200 {
		t.Errorf("/healthz: %d", status)
	}
	if status, body := probe("/readyz"); status != 503 || !strings.Contains(body, "no token yet") {
		t.Errorf("/readyz before the first token: %d %s", status, body)
	}
	s.FailTokens(sandbox.Fault{})
	testkit.Eventually(t, "ready", func() bool { status, _ := probe("/readyz"); return status == 200 })

	conns := make(map[string]net.Conn)
	for _, name := range []string{"main", "0", "webhooks", "admin"} {
		conns[name] = dialURL(t, strings.Replace(p.URL(t, name), "0.0.0.0", "127.0.0.1", 1))
		if resp, err := askOn(conns[name], "GET /healthz"); err != nil || resp.Close {
			t.Errorf("%s: closes its connection in everyday life: %v", name, err)
		}
	}
	p.Signal(t, syscall.SIGTERM)
	testkit.Eventually(t, "unready", func() bool {
		status, why := probe("/readyz")
		return status == 503 && strings.Contains(why, "shutting down")
	})
	for name, conn := range conns {
		resp, err := askOn(conn, "GET /healthz")
		if err != nil || !resp.Close {
			t.Errorf("%s, in the delay: %+v, %v", name, resp, err)
			continue
		}
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: %d bytes, %v after the last answer", name, n, err)
		}
	}
	wantCall(t, p.URL(t, "main"), 200, "accounts") // on a new connection
	p.Kill()
	if strings.Contains(p.Stderr.String(), "unknown variable") {
		t.Error("complains of Kubernetes' variables")
	}
}

// What is under way is finished, and its connection closed; what hangs is cut off at the end of the grace.
func TestShutdownDrainsAndCuts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ("USHER_SHUTDOWN_GRACE=6s"))
	p.Ready(t)
	url := p.URL(t, "main")
	entered := make(chan struct{}, 2)
	s.OnCall = func(*http.Request, []byte) { entered <- struct{}{} }
	s.FailGraphQL(sandbox.Fault{Delay: 3 * time.Second, Times: 1})
	finished := make(chan bool, 1)
	go func() {
		resp, body := call(t, url)
		finished <- resp.Close && strings.Contains(body, "accounts")
	}()
	<-entered
	s.FailGraphQL(sandbox.Fault{Hang: true})
	cut := make(chan error, 1)
	go func() {
		_, err := http.Post(url+"/graphql", "application/json", strings.NewReader(query))
		cut <- err
	}()
	<-entered
	p.Stop()
	if !<-finished {
		t.Error("a call under way was not finished, or its connection kept")
	}
	if err := <-cut; err == nil {
		t.Error("a call that hangs was answered")
	}
	<-p.Ended
	if _, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
		t.Error("still listening")
	}
	testkit.Eventually(t, "the log says what was cut off", func() bool {
		return strings.Contains(p.Stderr.String(), "cut off requests that were still in progress") &&
			strings.Contains(p.Stderr.String(), "call cut off: usher is shutting down")
	})
	if strings.Contains(p.Stderr.String(), "caller hung up") {
		t.Error("the caller is blamed")
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	s := newService(t)
	path := filepath.Join(t.TempDir(), "usher.sock")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close() // as a killed usher leaves it
	p := start(t, s.Environ("USHER_LISTEN=unix:"+path))
	p.Ready(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	client := serve.NewClient("unix:"+path, "")
	resp, err := client.Post("http://whatever/graphql", "application/json", strings.NewReader(query))
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	resp.Body.Close()

	second := start(t, s.Environ("USHER_LISTEN=unix:"+path))
	if <-second.Ended; second.Code != 1 || !strings.Contains(second.Stderr.String(), "in use") {
		t.Errorf("a second one on the same socket: %d %s", second.Code, second.Stderr.String())
	}
	p.Stop()
	<-p.Ended
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket stays behind: %v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := start(t, s.Environ("USHER_LISTEN=unix:"+path))
	if <-third.Ended; third.Code != 1 {
		t.Errorf("over somebody's file: %d", third.Code)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Error("somebody's file is gone")
	}
}

// Callers that do not read their answers do not delay the shutdown, on any port.
func TestShutdownWithoutReaders(t *testing.T) {
	t.Parallel()
	p := start(t, newService(t).Environ("USHER_SHUTDOWN_GRACE=1h",
		"USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1"))
	p.Ready(t)
	var stuffing sync.WaitGroup
	for _, name := range []string{"main", "webhooks", "admin"} {
		conn := dialURL(t, p.URL(t, name))
		stuffing.Go(func() { stuff(t, p, conn, strings.Repeat("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 1000)) })
	}
	stuffing.Wait()
	p.Stop()
	<-p.Ended
	if log := p.Stderr.String(); p.Code != 0 || strings.Contains(log, "cut off requests") || !strings.Contains(log, "nobody reads the answer") {
		t.Errorf("exit code %d: %s", p.Code, log[max(0, len(log)-1500):])
	}
}

// stuff sends the same request again and again, and reads no answer, until usher reads and answers no more:
// for some seconds, because a slow machine may just not get round to it.
func stuff(t *testing.T, p *testkit.Usher, conn net.Conn, request string) {
	t.Helper()
	// With a receive buffer that is smaller than the default, Linux may take back what it has
	// offered, and drop the other end's confirmations with its answers: then nothing can be sent
	// either, and usher just waits.
	for logged, rest, quiet := 0, "", 0; quiet < 2; {
		conn.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := io.WriteString(conn, cmp.Or(rest, request))
		rest = cmp.Or(rest, request)[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
			return
		}
		before := logged
		if logged = p.Stderr.Len(); err != nil && logged == before {
			quiet++
		} else {
			quiet = 0
		}
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

// askOn sends a request without a body on an open connection.
func askOn(conn net.Conn, line string) (*http.Response, error) {
	if _, err := io.WriteString(conn, line+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, err
}
