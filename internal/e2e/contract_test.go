//go:build unix

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"usher/internal/command"
	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// The contract_…_test.go files hold usher to what its documents promise, row by row, from
// outside: what only the whole program shows, such as that a setting reaches the part that it is
// for.

// run runs usher in this process, with arguments, until the test ends.
func run(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}

// ended runs a command of usher's to its end.
func ended(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	u := run(t, environ, args...)
	<-u.Ended
	return u.Code, u.Stdout.String(), u.Stderr.String()
}

// gateAlone is an usher with a gate and an admin port, and nothing else.
func gateAlone(forward string, extra ...string) []string {
	return append([]string{
		"USHER_WEBHOOK_FORWARD_URL=" + forward, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
		"USHER_WEBHOOK_ANSWER_WITHIN=10s", // a busy machine is no fault
	}, extra...)
}

func hooks(t *testing.T, u *testkit.Usher) string {
	t.Helper()
	return u.URL(t, "webhooks") + "/webhooks"
}

// on is a snapshot of a tenant on a platform.
func on(platform, tenant string, users int) string {
	return strings.Replace(testkit.Snapshot(tenant, users), `"code":"crm"`, `"code":"`+platform+`"`, 1)
}

// asked sends a request with headers, as names and values; Host is one.
func asked(t *testing.T, method, url, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	r := do(req, nil)
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r
}

// taken is an address that somebody listens on.
func taken(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// receiver is one that answers with a status, and notes what came.
type receiver struct {
	url     string
	arrived atomic.Int64 // also what is not answered yet
	mu      sync.Mutex   // guards what follows
	status  int
	words   string // the body of its answers
	got     []*http.Request
	bodies  []string
}

func newReceiver(t *testing.T, status int) *receiver {
	t.Helper()
	rc := &receiver{status: status}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rc.arrived.Add(1)
		rc.mu.Lock()
		defer rc.mu.Unlock()
		rc.got, rc.bodies = append(rc.got, r), append(rc.bodies, string(body))
		w.WriteHeader(rc.status)
		_, _ = io.WriteString(w, rc.words)
	}))
	t.Cleanup(srv.Close)
	rc.url = srv.URL
	return rc
}

func (rc *receiver) set(status int) { rc.mu.Lock(); defer rc.mu.Unlock(); rc.status = status }

func (rc *receiver) say(words string) { rc.mu.Lock(); defer rc.mu.Unlock(); rc.words = words }

func (rc *receiver) count() int { rc.mu.Lock(); defer rc.mu.Unlock(); return len(rc.got) }

// last is what came last.
func (rc *receiver) last(t *testing.T) (*http.Request, string) {
	t.Helper()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if len(rc.got) == 0 {
		t.Fatal("nothing came")
	}
	return rc.got[len(rc.got)-1], rc.bodies[len(rc.bodies)-1]
}

// hanging is a receiver that never answers.
func hanging(t *testing.T) string {
	t.Helper()
	r := sandbox.NewReceiver()
	r.Fail(sandbox.Fault{Hang: true})
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	return srv.URL
}

// states are those of an inbox's webhooks, by id: "1 waiting, 2 parked".
func states(t *testing.T, u *testkit.Usher) string {
	t.Helper()
	_, out, _ := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")}, "inbox", "ls", "--limit", "0")
	var all []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line) // the newest first
		all = append([]string{fmt.Sprint(f[0], " ", f[1])}, all...)
	}
	return strings.Join(all, ", ")
}
