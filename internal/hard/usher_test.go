package hard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/command"
	"usher/internal/sandbox"
	"usher/internal/trial"
)

// What nobody but usher, and whoever it is meant for, may ever see.
const (
	clientSecret = "cl1ent-s3cret"
	portKey      = "p0rt-k3y"
	webhookToken = "w3bhook-t0ken"
	adminToken   = "adm1n-t0ken"
	callersOwn   = "c4llers-0wn-credential"
)

const query = `{"query":"{ accounts(limit: 1) { id name } }"}`

// snapshot is a webhook that gives a tenant so many users.
func snapshot(tenant string, users int) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"id":1,"code":%q,"name":"T","platform":{"id":1,"code":"crm","name":"CRM"}},`+
		`"change":{"features":[{"code":"users","name":"Users","quantity":%d}],"subscriptions":[]}}}`, tenant, users)
}

// world is what usher stands between: the billing service and the receiver, each
// behind a wire.
type world struct {
	billing    *sandbox.Billing
	receiver   *sandbox.Receiver
	toService  *sandbox.Wire
	toReceiver *sandbox.Wire
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		billing: sandbox.NewBilling(sandbox.Client{
			ID: "app", Secret: clientSecret, Scopes: []string{"standard:read", "standard:write"},
		}),
		receiver: sandbox.NewReceiver(),
	}
	w.toService = wireTo(t, w.billing)
	w.toReceiver = wireTo(t, w.receiver)
	return w
}

func wireTo(t *testing.T, h http.Handler) *sandbox.Wire {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return wireFrom(t, srv)
}

// wireFrom is a wire that leads to srv.
func wireFrom(t *testing.T, srv *httptest.Server) *sandbox.Wire {
	t.Helper()
	wire, err := sandbox.NewWire(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	return wire
}

// environ is the least that an usher between the two needs, with free ports.
func (w *world) environ(extra ...string) []string {
	return append([]string{
		"USHER_BASE_URL=" + w.toService.URL(), "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=" + clientSecret,
		"USHER_WEBHOOK_FORWARD_URL=" + w.toReceiver.URL() + "/provisioning", "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	}, extra...)
}

// usher is one that runs, in this process or in one of its own.
type usher struct {
	local, gate, admin string // host and port of each
	log                output
	stop               func() // an orderly shutdown
	ended              chan struct{}
	code               int // once ended
	pid                int
}

// output gathers what a program prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) { o.mu.Lock(); defer o.mu.Unlock(); return o.b.Write(p) }
func (o *output) String() string              { o.mu.Lock(); defer o.mu.Unlock(); return o.b.String() }

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string) *usher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	u := &usher{ended: make(chan struct{}), pid: os.Getpid(), stop: cancel}
	go func() {
		defer close(u.ended)
		u.code = command.Main(ctx, command.Process{Environ: environ, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &u.log})
	}()
	t.Cleanup(func() { u.stop(); <-u.ended })
	u.find(t)
	return u
}

// binary builds usher once, for what only a process can show.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "usher-hard-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "usher")
	if out, err := exec.Command("go", "build", "-o", path, "usher").CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built {
		if path, err := binary(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

var built bool // whether there is a binary to remove

// startProcess runs usher in a process of its own.
func startProcess(t *testing.T, environ []string) *usher {
	t.Helper()
	built = true
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	u := &usher{ended: make(chan struct{})}
	cmd := exec.Command(path)
	cmd.Env, cmd.Stderr = environ, &u.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	u.pid = cmd.Process.Pid
	u.stop = func() { _ = cmd.Process.Signal(os.Interrupt) }
	go func() {
		defer close(u.ended)
		_ = cmd.Wait()
		u.code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-u.ended })
	u.find(t)
	return u
}

// find learns from the log where usher listens.
func (u *usher) find(t *testing.T) {
	t.Helper()
	where := map[string]*string{"main": &u.local, "webhooks": &u.gate, "admin": &u.admin}
	trial.Eventually(t, "listening", func() bool {
		select {
		case <-u.ended:
			t.Fatalf("ended with %d: %s", u.code, u.log.String())
		default:
		}
		for line := range strings.SplitSeq(u.log.String(), "\n") {
			var entry struct{ Msg, Listener, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
				_, *where[entry.Listener], _ = strings.Cut(entry.Address, "://")
			}
		}
		return u.local != "" && u.gate != "" && u.admin != ""
	})
}

// ready waits for the first token.
func (u *usher) ready(t *testing.T) *usher {
	t.Helper()
	trial.Eventually(t, "ready", func() bool { return get(t, u.admin, "/readyz").status == 200 })
	return u
}

// end shuts usher down, before the test ends.
func (u *usher) end() { u.stop(); <-u.ended }

// reply is what a caller gets to see.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // the request failed, or the answer broke off
}

// code is the error code of an answer of usher's own.
func (r reply) code() string {
	var own struct {
		Errors []struct{ Extensions struct{ Code string } }
	}
	if json.Unmarshal([]byte(r.body), &own) != nil || len(own.Errors) != 1 {
		return ""
	}
	return own.Errors[0].Extensions.Code
}

// client has a pool of its own, so that its connections can be counted out.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute}

func get(t *testing.T, host, path string) reply {
	t.Helper()
	return do(http.NewRequest("GET", "http://"+host+path, nil))
}

// call sends a query to the local port.
func (u *usher) call() reply { return post(u.local, "/graphql", query) }

// send sends a webhook to the gate.
func (u *usher) send(body string) reply { return post(u.gate, "/webhooks", body) }

func post(host, path, body string) reply {
	req, err := http.NewRequest("POST", "http://"+host+path, strings.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return do(req, err)
}

func do(req *http.Request, err error) reply {
	if err != nil {
		return reply{err: err}
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(body), err}
}
