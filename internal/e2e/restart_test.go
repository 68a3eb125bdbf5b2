//go:build unix

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"usher/internal/testkit"
)

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
	}
	launch := func() *testkit.Usher {
		// LISTEN_PID is only known in the process itself.
		cmd := exec.Command("sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0"`, testkit.Binary(t))
		cmd.ExtraFiles = []*os.File{inherited}
		return startCommand(t, environ, cmd)
	}

	usher := launch()
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
	for range pick(3, 30) {
		enough := sent.Load() + 100
		testkit.Eventually(t, "under load", func() bool { return sent.Load() > enough || t.Failed() })
		usher.End()
		if usher.Code != 0 {
			t.Errorf("ended with %d", usher.Code)
		}
		usher = launch()
	}
	enough := sent.Load() + 100
	testkit.Eventually(t, "the last one serves", func() bool { return sent.Load() > enough || t.Failed() })
	stop.Store(true)
	callers.Wait()
	testkit.Eventually(t, "everything is delivered", func() bool { return delivered.Load() >= sent.Load() || t.Failed() })
	usher.End()
}
