package command

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/trial"
)

// query is a call that every billing service answers.
const query = `{"query":"{ accounts(limit: 1) { id name } }"}`

// service is a billing service for a program to use.
type service struct {
	*sandbox.Billing
	url string
}

func newService(t *testing.T) *service {
	t.Helper()
	b := sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "t0psecret", Scopes: []string{"standard:read", "standard:write"}})
	srv := httptest.NewServer(b)
	t.Cleanup(srv.Close)
	return &service{b, srv.URL}
}

// environ is the least that a program needs to use s; its listeners take free ports.
func (s *service) environ(extra ...string) []string {
	return append([]string{
		"USHER_BASE_URL=" + s.url, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret",
		"USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_LEVEL=debug", "USHER_LOG_FORMAT=json",
	}, extra...)
}

// program is an usher that runs in this process.
type program struct {
	stdout, stderr trial.Output
	stop           context.CancelFunc // an orderly shutdown
	ended          chan struct{}
	code           int // once ended
}

// start runs usher until the test ends.
func start(t *testing.T, environ []string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.code = Main(ctx, Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: &p.stdout, Stderr: &p.stderr})
	}()
	t.Cleanup(func() { cancel(); <-p.ended })
	return p
}

// url finds where a listener is, from the log.
func (p *program) url(t *testing.T, listener string) string {
	t.Helper()
	var address string
	trial.Eventually(t, "listening: "+listener, func() bool {
		for line := range strings.SplitSeq(p.stderr.String(), "\n") {
			var entry struct{ Msg, Listener, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" && entry.Listener == listener {
				address = entry.Address
				return true
			}
		}
		select {
		case <-p.ended:
			t.Fatalf("ended with %d: %s", p.code, p.stderr.String())
		default:
		}
		return false
	})
	return address
}

func (p *program) ready(t *testing.T) {
	t.Helper()
	trial.Eventually(t, "ready", func() bool {
		status, _ := get(t, p.url(t, "admin")+"/readyz")
		return status == 200
	})
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	resp, body := whole(t, resp, err)
	return resp.StatusCode, body
}

func call(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(url+"/graphql", "application/json", strings.NewReader(query))
	return whole(t, resp, err)
}

// whole reads an answer, which has to come whole.
func whole(t *testing.T, resp *http.Response, err error) (*http.Response, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func wantCall(t *testing.T, url string, status int, part string) *http.Response {
	t.Helper()
	resp, body := call(t, url)
	if resp.StatusCode != status || !strings.Contains(body, part) {
		t.Fatalf("%d %s, want %d with %s", resp.StatusCode, body, status, part)
	}
	return resp
}
