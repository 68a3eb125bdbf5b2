//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	p := startProcess(t, s.Environ("USHER_SHUTDOWN_GRACE=10m"))
	p.Ready(t)
	entered := make(chan struct{})
	s.OnCall = func(*http.Request, []byte) { close(entered) }
	s.FailGraphQL(sandbox.Fault{Hang: true})
	go http.Post(p.URL(t, "main")+"/graphql", "application/json", strings.NewReader(testkit.Query))
	<-entered
	p.Signal(t, syscall.SIGTERM)
	testkit.Eventually(t, "shutting down", func() bool { return strings.Contains(p.Stderr.String(), "shutting down") })
	p.Signal(t, os.Interrupt)
	if <-p.Ended; p.Code != 1 {
		t.Errorf("exit code %d: %s", p.Code, p.Stderr.String())
	}
}

// A database that stands still does not keep usher from ending: neither a webhook that it does
// not take, nor a delivery whose outcome it does not note, nor leases that it does not take back.
func TestEndsWhileTheDatabaseStandsStill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	database := pgtest.Schema(t)
	wire := pgtest.Cut(t, hostOf(t, database))
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
		"USHER_WEBHOOK_INBOX="+wire.Through(database), "USHER_SHUTDOWN_GRACE=2s"))
	u.Ready(t)
	gate := u.URL(t, "webhooks") + "/webhooks"
	testkit.Post(t, gate, testkit.Snapshot("acme", 1))
	<-delivered
	hangs.Store(true)
	testkit.Post(t, gate, testkit.Snapshot("acme", 2))
	<-entered
	wire.Blackhole()
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

// A service manager that holds the gate's socket restarts usher under load: with callers that open a
// connection for each webhook, and with callers that keep theirs. Nobody is refused.
func TestRestartRefusesNobody(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	var delivered atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { delivered.Add(1) }))
	defer receiver.Close()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	inherited, err := socket.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	gate := socket.Addr().String()
	environ := []string{
		"USHER_WEBHOOK_FORWARD_URL=" + receiver.URL, "USHER_WEBHOOK_LISTEN=" + gate, "USHER_ADMIN_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db"), "USHER_LOG_FORMAT=json",
		"USHER_WEBHOOK_ANSWER_WITHIN=30s", // a busy machine is no fault
	}
	launch := func() *testkit.Usher {
		// LISTEN_PID is only known in the process itself.
		cmd := exec.Command("sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0"`, testkit.Binary(t))
		cmd.ExtraFiles = []*os.File{inherited}
		return startCommand(t, environ, cmd)
	}

	usher, some := launch(), pick[int64](30, 100)
	var sent atomic.Int64
	var stop atomic.Bool
	var callers sync.WaitGroup
	for caller := range 6 {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: caller%2 == 0}}
		defer client.CloseIdleConnections()
		callers.Go(func() {
			for n := 1; !stop.Load(); n++ {
				resp, err := client.Post("http://"+gate+"/webhooks", "application/json", strings.NewReader(testkit.Snapshot(fmt.Sprint("tenant-", caller), n)))
				if err != nil {
					t.Errorf("caller %d was refused: %v", caller, err)
					return
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("caller %d was answered %s", caller, resp.Status)
					return
				}
				sent.Add(1)
			}
		})
	}
	for range pick(2, 30) {
		enough := sent.Load() + some
		testkit.Eventually(t, "under load", func() bool { return sent.Load() > enough || t.Failed() })
		usher.End()
		if usher.Code != 0 {
			t.Errorf("ended with %d", usher.Code)
		}
		usher = launch()
	}
	enough := sent.Load() + some
	testkit.Eventually(t, "the last one serves", func() bool { return sent.Load() > enough || t.Failed() })
	stop.Store(true)
	callers.Wait()
	testkit.Eventually(t, "everything is delivered", func() bool { return delivered.Load() >= sent.Load() || t.Failed() })
	usher.End()
}
