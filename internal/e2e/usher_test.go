package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"usher/internal/command"
	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// What nobody but usher, and whoever it is meant for, may ever see.
const (
	clientSecret = "cl1ent-s3cret"
	portKey      = "p0rt-k3y"
	webhookToken = "w3bhook-t0ken"
	adminToken   = "adm1n-t0ken"
	callersOwn   = "c4llers-0wn-credential"
)

// world is what usher stands between: the billing service and the receiver, each
// behind a wire.
type world struct {
	billing    *sandbox.Billing
	receiver   *sandbox.Receiver
	toService  *testkit.Wire
	toReceiver *testkit.Wire
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

func wireTo(t *testing.T, h http.Handler) *testkit.Wire {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return wireFrom(t, srv)
}

// wireFrom is a wire that leads to srv.
func wireFrom(t *testing.T, srv *httptest.Server) *testkit.Wire {
	t.Helper()
	wire, err := testkit.NewWire(srv.Listener.Addr().String())
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
		"USHER_WEBHOOK_ANSWER_WITHIN=30s", // a busy machine is no fault
	}, extra...)
}

// usher is one that runs, and where it listens.
type usher struct {
	*testkit.Usher
	local, gate, admin string // host and port of each
}

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string) *usher {
	t.Helper()
	return find(t, testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	}))
}

// find learns from the log where usher listens.
func find(t *testing.T, u *testkit.Usher) *usher {
	t.Helper()
	host := func(listener string) string { return strings.TrimPrefix(u.URL(t, listener), "http://") }
	return &usher{u, host("main"), host("webhooks"), host("admin")}
}

// ready waits for the first token.
func (u *usher) ready(t *testing.T) *usher {
	t.Helper()
	u.Ready(t)
	return u
}

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

// call sends a testkit.Query to the local port.
func (u *usher) call() reply { return post(u.local, "/graphql", testkit.Query) }

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
