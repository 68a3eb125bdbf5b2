package serve_test

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/serve"
	"usher/internal/testkit"
)

// inTheDelay tries what holds in the delay of a shutdown: with a longer delay, where the machine was too slow.
func inTheDelay(t *testing.T, try func(t *testing.T, delay time.Duration) (took time.Duration, err error)) {
	t.Helper()
	for delay := time.Second; ; delay *= 4 {
		took, err := try(t, delay)
		if err != nil && (took < delay || delay > time.Minute) {
			t.Error(err)
		}
		if err == nil || t.Failed() {
			return
		}
	}
}

// shutDown has usher shut down, and waits until it says so.
func shutDown(t *testing.T, p *testkit.Usher) {
	t.Helper()
	admin := p.URL(t, "admin")
	p.Stop()
	testkit.Eventually(t, "shutting down", func() bool {
		_, body := get(t, admin+"/readyz")
		return strings.Contains(body, "shutting down")
	})
}

// usher behaves well in a pod: its probes answer the kubelet, and it drains after SIGTERM.
func TestPod(t *testing.T) {
	t.Parallel()
	inTheDelay(t, tryPod)
}

func tryPod(t *testing.T, delay time.Duration) (took time.Duration, failed error) {
	s := newService(t)
	s.FailTokens(sandbox.Fault{Status: 503})
	p := start(t, s.Environ(
		"USHER_SERVICE_HOST=10.0.0.1", "USHER_SERVICE_PORT=8080", "USHER_PORT=tcp://10.0.0.1:8080", "USHER_PORT_8080_TCP_ADDR=10.0.0.1",
		"USHER_ADMIN_LISTEN=0.0.0.0:0", "USHER_ADMIN_TOKEN=adm1n-token-adm1n", "USHER_SHUTDOWN_DELAY="+delay.String()))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.URL(t, "admin"), "http://"))
	ask := func(path string) (int, string) {
		req, _ := http.NewRequest("GET", "http://127.0.0.1:"+port+path, nil)
		req.Host = "10.1.2.3:" + port // as the kubelet and Prometheus do
		req.Header.Set("Authorization", "Bearer adm1n-token-adm1n")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if status, _ := ask("/healthz"); status != 200 {
		t.Errorf("/healthz: %d", status)
	}
	if status, body := ask("/readyz"); status != 503 || !strings.Contains(body, "no token yet") {
		t.Errorf("/readyz before the first token: %d %s", status, body)
	}
	if status, _ := ask("/metrics"); status != 200 {
		t.Errorf("/metrics by address: %d", status)
	}
	s.FailTokens(sandbox.Fault{})
	testkit.Eventually(t, "ready", func() bool { status, _ := ask("/readyz"); return status == 200 })

	began := time.Now()
	p.Stop()
	var unready int
	var why string
	testkit.Comes(func() bool { unready, why = ask("/readyz"); return unready != 200 })
	if unready != 503 || !strings.Contains(why, "shutting down") {
		failed = fmt.Errorf("/readyz: %d %s", unready, why)
	}
	failed = cmp.Or(failed, servesOn(p.URL(t, "main")))
	took = time.Since(began)
	<-p.Ended
	if p.Code != 0 {
		t.Errorf("exit code %d", p.Code)
	}
	if strings.Contains(p.Stderr.String(), "unknown variable") {
		t.Error("complains of Kubernetes' variables")
	}
	return took, failed
}

// servesOn makes a call on a connection of its own.
func servesOn(url string) error {
	resp, err := http.Post(url+"/graphql", "application/json", strings.NewReader(query))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func TestShutdownDrainsAndCuts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ("USHER_SHUTDOWN_GRACE=3s"))
	p.Ready(t)
	url := p.URL(t, "main")
	entered := make(chan struct{}, 2)
	s.OnCall = func(*http.Request, []byte) { entered <- struct{}{} }
	s.FailGraphQL(sandbox.Fault{Delay: 300 * time.Millisecond, Times: 1})
	finished := make(chan string, 1)
	go func() { _, body := call(t, url); finished <- body }()
	<-entered
	s.FailGraphQL(sandbox.Fault{Hang: true})
	cut := make(chan error, 1)
	go func() {
		_, err := http.Post(url+"/graphql", "application/json", strings.NewReader(query))
		cut <- err
	}()
	<-entered
	p.Stop()
	if body := <-finished; !strings.Contains(body, "accounts") {
		t.Errorf("a call under way was not finished: %s", body)
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

// During the delay every listener still answers on open connections. Each answer closes its connection.
func TestDrain(t *testing.T) {
	t.Parallel()
	inTheDelay(t, tryDrain)
}

func tryDrain(t *testing.T, delay time.Duration) (took time.Duration, err error) {
	p := start(t, newService(t).Environ("USHER_SHUTDOWN_DELAY="+delay.String(), "USHER_PORTS_0_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1"))
	p.Ready(t)
	names := []string{"main", "0", "webhooks", "admin"}
	var conns []net.Conn
	for _, name := range names {
		conn := dialURL(t, p.URL(t, name))
		if resp, err := askOn(conn, "GET /healthz"); err != nil || resp.Close {
			t.Errorf("%s: closes its connection in everyday life: %v", name, err)
		}
		conns = append(conns, conn)
	}
	began := time.Now()
	shutDown(t, p)
	for i, conn := range conns {
		resp, err := askOn(conn, "GET /healthz")
		if err != nil {
			return time.Since(began), fmt.Errorf("%s: %w", names[i], err)
		}
		if !resp.Close {
			return time.Since(began), fmt.Errorf("%s: %d, and the connection is kept", names[i], resp.StatusCode)
		}
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			return time.Since(began), fmt.Errorf("%s: %d bytes, %v after the last answer", names[i], n, err)
		}
	}
	err = servesOn(p.URL(t, "main"))
	return time.Since(began), err
}

// During the grace a call under way is answered, and its connection closed.
func TestDrainInTheGrace(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ())
	p.Ready(t)
	answered := underWay(t, s, p)
	shutDown(t, p)
	if resp := answered(); resp.StatusCode != 200 || !resp.Close {
		t.Errorf("a call under way: %d, closed: %v", resp.StatusCode, resp.Close)
	}
}

// underWay makes a call that the service answers, as it does all later ones, once answered is called.
func underWay(t *testing.T, s *testkit.Service, p *testkit.Usher) (answered func() *http.Response) {
	t.Helper()
	entered, release := make(chan struct{}, 2), make(chan struct{})
	s.OnCall = func(*http.Request, []byte) { entered <- struct{}{}; <-release }
	slow := make(chan *http.Response, 1)
	go func() { resp, _ := call(t, p.URL(t, "main")); slow <- resp }()
	<-entered
	return func() *http.Response { close(release); return <-slow }
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
