package command

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/sandbox"
	"usher/internal/settings"
	"usher/internal/testkit"
	"usher/webhookgate"
)

// The manners of a pod.
func TestPod(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.FailTokens(sandbox.Fault{Status: 503})
	p := start(t, s.environ(
		"USHER_SERVICE_HOST=10.0.0.1", "USHER_SERVICE_PORT=8080", "USHER_PORT=tcp://10.0.0.1:8080", "USHER_PORT_8080_TCP_ADDR=10.0.0.1",
		"USHER_ADMIN_LISTEN=0.0.0.0:0", "USHER_ADMIN_TOKEN=adm1ntoken", "USHER_SHUTDOWN_DELAY=4s"))
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
	testkit.Eventually(t, "ready", func() bool { status, _ := ask("/readyz"); return status == 200 })

	p.stop()
	testkit.Eventually(t, "unready", func() bool {
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
	t.Parallel()
	s := newService(t)
	p := start(t, s.environ("USHER_SHUTDOWN_GRACE=3s"))
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
	testkit.Eventually(t, "the log says what was cut off", func() bool {
		return strings.Contains(p.stderr.String(), "cut off what was still under way") &&
			strings.Contains(p.stderr.String(), "call cut off: usher is shutting down")
	})
	if strings.Contains(p.stderr.String(), "caller hung up") {
		t.Error("the caller is blamed")
	}
}

// A second signal ends usher also if something hangs, such as the inbox's servers.
func TestSecondSignalWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, err := webhookgate.New(webhookgate.Config{ForwardURL: &url.URL{Scheme: "http", Host: "localhost"}})
		if err != nil {
			t.Fatal(err)
		}
		u := &usher{settings: new(settings.Settings), log: slog.New(slog.DiscardHandler), gate: gate}
		u.settings.Admin.ShutdownGrace = time.Hour
		atOnce, stop := context.WithCancelCause(context.Background())
		time.AfterFunc(time.Minute, func() { stop(errSecondSignal) })
		hung := make(chan struct{})
		defer close(hung)
		begin := time.Now()
		err = u.shutdown(atOnce, func(context.Context) error { <-hung; return nil }, func() {})
		if took := time.Since(begin); !errors.Is(err, errSecondSignal) || took > time.Minute+time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
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
	t.Parallel()
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
		{"help of a command", nil, []string{"demo", "--help"}, 0, "Usage: usher demo"},
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
	t.Parallel()
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
