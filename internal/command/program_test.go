package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/sandbox"
)

const query = `{"query":"{ accounts(limit: 1) { id name } }"}`

// output gathers what a program prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

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
	stdout, stderr output
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

// eventually waits for something that another goroutine or process brings about.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range 6000 {
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond) // real processes and sockets: nothing to wait on
	}
	t.Fatalf("in 60 s: not %s", what)
}

// url finds where a listener is, from the log.
func (p *program) url(t *testing.T, listener string) string {
	t.Helper()
	var address string
	eventually(t, "listening: "+listener, func() bool {
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
	eventually(t, "ready", func() bool {
		status, _ := get(t, p.url(t, "admin")+"/readyz")
		return status == 200
	})
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func call(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(url+"/graphql", "application/json", strings.NewReader(query))
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

// Four clients call through four expiries and more: no call fails, and the service
// never sees a token that has expired. (That no call waits either is shown with a
// clock of its own in package tokens.)
func TestAcrossExpiries(t *testing.T) {
	s := newService(t)
	s.SetTokenLife("app", 2*time.Second)
	s.FailTokens(sandbox.Fault{Delay: 150 * time.Millisecond})
	p := start(t, s.environ())
	p.ready(t)
	url := p.url(t, "main")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	var wg sync.WaitGroup
	until := time.Now().Add(9 * time.Second)
	var stall time.Duration // the longest that this machine let a goroutine wait
	wg.Go(func() {
		for time.Now().Before(until) {
			before := time.Now()
			time.Sleep(5 * time.Millisecond)
			stall = max(stall, time.Since(before))
		}
	})
	for range 4 {
		wg.Go(func() {
			for time.Now().Before(until) {
				resp, err := client.Post(url+"/graphql", "application/json", strings.NewReader(query))
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("status %d", resp.StatusCode)
				}
				time.Sleep(2 * time.Millisecond) // a client's own pace: leaves the CPU to others
			}
		})
	}
	wg.Wait()
	// Between renewal and expiry are some 200 ms. Where the machine stands still
	// for that long a token can expire on its way; no caller noticed, see above.
	if ok, unauthorized := s.Calls(); unauthorized != 0 && stall < 100*time.Millisecond {
		t.Errorf("%d of %d calls were made with an expired token", unauthorized, ok)
	} else {
		t.Logf("%d calls, %d with a token that expired on its way; longest stall of this machine %v", ok, unauthorized, stall.Round(time.Millisecond))
	}
	if n := s.TokenRequests(); n < 5 || n > 8 {
		t.Errorf("%d token requests in 9 s of 2-second tokens", n)
	}
}

func TestTokenEndpointDown(t *testing.T) {
	s := newService(t)
	s.SetTokenLife("app", 3*time.Second)
	p := start(t, s.environ())
	p.ready(t)
	url := p.url(t, "main")
	wantCall(t, url, 200, "accounts")
	s.FailTokens(sandbox.Fault{Status: 503})
	wantCall(t, url, 200, "accounts") // the valid token serves on
	eventually(t, "503", func() bool { resp, _ := call(t, url); return resp.StatusCode == 503 })
	before, _ := s.Calls()
	resp := wantCall(t, url, 503, "TOKEN_UNAVAILABLE")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if ok, unauthorized := s.Calls(); ok != before || unauthorized != 0 {
		t.Errorf("calls went upstream without a valid token: %d, %d", ok-before, unauthorized)
	}
	if status, body := get(t, p.url(t, "admin")+"/readyz"); status != 200 {
		t.Errorf("an outage after the start takes the pod down: %d %s", status, body)
	}
	s.FailTokens(sandbox.Fault{})
	eventually(t, "recovered", func() bool { resp, _ := call(t, url); return resp.StatusCode == 200 })
}

// USHER_UPSTREAM_TIMEOUT is for calls: a token endpoint that is slower has its ten
// seconds all the same, and the callers wait.
func TestTokenSlowerThanCallsMayBe(t *testing.T) {
	s := newService(t)
	s.FailTokens(sandbox.Fault{Delay: 800 * time.Millisecond})
	p := start(t, s.environ("USHER_UPSTREAM_TIMEOUT=500ms"))
	wantCall(t, p.url(t, "main"), 200, "accounts")
	s.FailGraphQL(sandbox.Fault{Hang: true})
	wantCall(t, p.url(t, "main"), 504, "UPSTREAM_TIMEOUT")
}

func TestSecretRotation(t *testing.T) {
	s := newService(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("wrong-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(s.environ(), "USHER_CLIENT_SECRET=", "USHER_CLIENT_SECRET_FILE="+file)
	p := start(t, env)
	url := p.url(t, "main")
	for range 100 {
		wantCall(t, url, 502, `"reason":"invalid_client"`)
	}
	if n := s.TokenRequests(); n > 3 {
		t.Errorf("%d token requests for 100 calls", n)
	}
	if status, body := get(t, p.url(t, "admin")+"/readyz"); status != 503 || !strings.Contains(body, "invalid_client") {
		t.Errorf("%d %s", status, body)
	}
	if err := os.WriteFile(file, []byte("t0psecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	eventually(t, "recovered", func() bool { resp, _ := call(t, url); return resp.StatusCode == 200 })
	t.Logf("recovered %v after the change", time.Since(before).Round(time.Millisecond))
	p.ready(t)
}

func TestPortsShareTokens(t *testing.T) {
	s := newService(t)
	p := start(t, s.environ(
		"USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_SCOPE=standard:write  standard:read", "USHER_PORTS_0_NAME=same",
		"USHER_PORTS_1_LISTEN=127.0.0.1:0", "USHER_PORTS_1_SCOPE=standard:read", "USHER_PORTS_1_NAME=readonly", "USHER_PORTS_1_KEY=k"))
	p.ready(t)
	wantCall(t, p.url(t, "main"), 200, "accounts")
	wantCall(t, p.url(t, "same"), 200, "accounts")
	wantCall(t, p.url(t, "readonly"), 401, "KEY_REQUIRED")
	if n := s.TokenRequests(); n != 2 {
		t.Errorf("%d token requests for two identities", n)
	}
	_, metrics := get(t, p.url(t, "admin")+"/metrics")
	for _, want := range []string{
		`usher_token_requests_total{port="main",result="ok"} 1`,
		`usher_token_requests_total{port="readonly",result="ok"} 1`,
		`usher_proxy_requests_total{code="200",port="same"} 1`,
		`usher_proxy_requests_total{code="401",port="readonly"} 1`,
		`usher_proxy_in_flight{port="main"} 0`,
		`usher_proxy_retries_total{port="main"} 0`,
		`usher_token_early_revocations_total{port="main"} 0`,
		`usher_token_expiry_timestamp_seconds{port="main"} 1.`,
		`usher_proxy_request_duration_seconds_count{port="main"} 1`,
		`usher_webhook_received_total{decision="queued"} 0`, `usher_webhook_attempts_total{result="ok"} 0`, `usher_webhook_duration_seconds_count 0`,
		`usher_inbox_pending 0`, `usher_inbox_oldest_seconds 0`, `usher_inbox_parked 0`,
		`usher_build_info{`, `process_open_fds`, `go_goroutines`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if strings.Contains(metrics, `usher_token_requests_total{port="same"`) {
		t.Error("a shared token is counted twice")
	}
}

// Nothing of secrets or tokens in anything that usher shows, at debug level.
func TestNothingSecretShows(t *testing.T) {
	s := newService(t)
	var mu sync.Mutex
	secrets := map[string]bool{"t0psecret": true, "p0rtkey": true, "adm1ntoken": true}
	s.OnCall = func(r *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		secrets[token] = true
		for part := range strings.SplitSeq(token, ".") {
			secrets[part] = true
		}
	}
	p := start(t, s.environ("USHER_KEY=p0rtkey", "USHER_ADMIN_TOKEN=adm1ntoken"))
	p.ready(t)
	send := func(key string) string {
		req, _ := http.NewRequest("POST", p.url(t, "main")+"/graphql", strings.NewReader(query))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Usher-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return fmt.Sprint(resp.Header) + string(body)
	}
	shown := send("p0rtkey") + send("wr0ng")
	s.Revoke()
	shown += send("p0rtkey")
	s.Revoke()
	s.FailTokens(sandbox.Fault{Status: 401, Body: `{"error":"invalid_client","error_description":"t0psecret is not the secret"}`})
	shown += send("p0rtkey") + send("p0rtkey")
	_, ready := get(t, p.url(t, "admin")+"/readyz")
	req, _ := http.NewRequest("GET", p.url(t, "admin")+"/metrics", nil)
	req.SetBasicAuth("", "adm1ntoken")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, _ := io.ReadAll(resp.Body)
	p.stop()
	<-p.ended
	shown += ready + string(metrics) + p.stdout.String() + p.stderr.String()
	mu.Lock()
	defer mu.Unlock()
	if len(secrets) < 8 {
		t.Fatalf("only %d secrets to look for", len(secrets))
	}
	for secret := range secrets {
		if strings.Contains(shown, secret) {
			t.Errorf("%q shows", secret)
		}
	}
	if !strings.Contains(shown, "[redacted]") || !strings.Contains(shown, "long before its end") {
		t.Error("the test did not see what it should")
	}
}

// The manners of a pod.
func TestPod(t *testing.T) {
	s := newService(t)
	s.FailTokens(sandbox.Fault{Status: 503})
	p := start(t, s.environ(
		"USHER_SERVICE_HOST=10.0.0.1", "USHER_SERVICE_PORT=8080", "USHER_PORT=tcp://10.0.0.1:8080", "USHER_PORT_8080_TCP_ADDR=10.0.0.1",
		"USHER_ADMIN_LISTEN=0.0.0.0:0", "USHER_ADMIN_TOKEN=adm1ntoken", "USHER_SHUTDOWN_DELAY=1s"))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.url(t, "admin"), "http://"))
	ask := func(path string) (int, string) {
		req, _ := http.NewRequest("GET", "http://127.0.0.1:"+port+path, nil)
		req.Host = "10.1.2.3:" + port // as the kubelet and Prometheus do
		req.Header.Set("Authorization", "Bearer adm1ntoken")
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
	eventually(t, "ready", func() bool { status, _ := ask("/readyz"); return status == 200 })

	p.stop()
	eventually(t, "unready", func() bool {
		status, body := ask("/readyz")
		return status == 503 && strings.Contains(body, "shutting down")
	})
	wantCall(t, p.url(t, "main"), 200, "accounts") // within the delay it serves on
	<-p.ended
	if p.code != 0 {
		t.Errorf("exit code %d", p.code)
	}
	if strings.Contains(p.stderr.String(), "unknown variable") {
		t.Error("complains of Kubernetes' variables")
	}
}

func TestShutdownDrainsAndCuts(t *testing.T) {
	s := newService(t)
	p := start(t, s.environ("USHER_SHUTDOWN_GRACE=700ms"))
	p.ready(t)
	url := p.url(t, "main")
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
	p.stop()
	if body := <-finished; !strings.Contains(body, "accounts") {
		t.Errorf("a call under way was not finished: %s", body)
	}
	if err := <-cut; err == nil {
		t.Error("a call that hangs was answered")
	}
	<-p.ended
	if _, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
		t.Error("still listening")
	}
	if !strings.Contains(p.stderr.String(), "cut off") {
		t.Errorf("the log does not say what was cut off")
	}
}

func TestUnixSocket(t *testing.T) {
	s := newService(t)
	path := filepath.Join(t.TempDir(), "usher.sock")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close() // as a killed usher leaves it
	p := start(t, s.environ("USHER_LISTEN=unix:"+path))
	p.ready(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	client, _ := adminClient("unix:" + path)
	resp, err := client.Post("http://whatever/graphql", "application/json", strings.NewReader(query))
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	resp.Body.Close()

	second := start(t, s.environ("USHER_LISTEN=unix:"+path))
	if <-second.ended; second.code != 1 || !strings.Contains(second.stderr.String(), "in use") {
		t.Errorf("a second one on the same socket: %d %s", second.code, second.stderr.String())
	}
	p.stop()
	<-p.ended
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket stays behind: %v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := start(t, s.environ("USHER_LISTEN=unix:"+path))
	if <-third.ended; third.code != 1 {
		t.Errorf("over somebody's file: %d", third.code)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Error("somebody's file is gone")
	}
}

func TestExitCodes(t *testing.T) {
	s := newService(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tc := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		want    string
	}{
		{"port taken", s.environ("USHER_LISTEN=" + taken.Addr().String()), nil, 1, "USHER_LISTEN: can't listen on " + taken.Addr().String()},
		{"admin port taken", s.environ("USHER_ADMIN_LISTEN=" + taken.Addr().String()), nil, 1, "USHER_ADMIN_LISTEN"},
		{"bad settings", nil, nil, 2, "USHER_BASE_URL is not set"},
		{"bad settings of check", nil, []string{"check"}, 2, "USHER_BASE_URL is not set"},
		{"bad settings of exec", nil, []string{"exec", "--", "true"}, 2, "USHER_BASE_URL is not set"},
		{"unknown command", nil, []string{"sevre"}, 2, `no command "sevre"`},
		{"unknown command with arguments", nil, []string{"./report.sh", "--help"}, 2, "write usher exec -- ./report.sh"},
		{"too much", nil, []string{"version", "x"}, 2, "takes no arguments"},
		{"exec of nothing", s.environ(), []string{"exec", "--"}, 2, "needs a command"},
		{"help", nil, []string{"-h"}, 0, "usher exec -- CMD"},
		{"help of a command", nil, []string{"demo", "--help"}, 0, "usher exec -- CMD"},
		{"version", nil, []string{"version"}, 0, "go1."},
		{"healthcheck of none", []string{"USHER_ADMIN_LISTEN=127.0.0.1:1"}, []string{"healthcheck"}, 1, "refused"},
		{"healthcheck without a port", []string{"USHER_ADMIN_LISTEN=off"}, []string{"healthcheck"}, 1, "off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, tc.environ, tc.args...)
			<-p.ended
			if out := p.stdout.String() + p.stderr.String(); p.code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("%d, want %d with %q:\n%s", p.code, tc.code, tc.want, out)
			}
		})
	}
}

func TestHealthcheck(t *testing.T) {
	s := newService(t)
	s.FailTokens(sandbox.Fault{Status: 503})
	p := start(t, s.environ())
	addr := strings.TrimPrefix(p.url(t, "admin"), "http://")
	probe := func() int {
		h := start(t, []string{"USHER_ADMIN_LISTEN=" + addr}, "healthcheck")
		<-h.ended
		return h.code
	}
	if code := probe(); code != 1 {
		t.Errorf("before the first token: %d", code)
	}
	s.FailTokens(sandbox.Fault{})
	p.ready(t)
	if code := probe(); code != 0 {
		t.Errorf("ready: %d", code)
	}
}
