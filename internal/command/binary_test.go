//go:build unix

package command

import (
	"errors"
	"io"
	"log"
	"math/rand/v2"
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
	"usher/internal/trial"
)

// binary builds usher once, for what only a process can show.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "usher-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "usher")
	out, err := exec.Command("go", "build", "-o", path, "usher").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// callAndExit makes this test's own binary a script for usher exec: there is no
// telling which other HTTP client a machine has.
const callAndExit = "CALL_AND_EXIT"

func TestMain(m *testing.M) {
	if os.Getenv(callAndExit) != "" {
		resp, err := http.Post(os.Getenv("USHER_URL"), "application/json", strings.NewReader(query))
		if err != nil {
			log.Fatal(err)
		}
		_, _ = io.Copy(os.Stdout, resp.Body)
		os.Exit(0)
	}
	if config := os.Getenv(natsNode); config != "" {
		runNode(config)
		os.Exit(0)
	}
	code := m.Run()
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// process is an usher in a process of its own; it has the methods of a program.
type process struct {
	program
	cmd *exec.Cmd
}

func startProcess(t *testing.T, environ []string, args ...string) *process {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it is about the built binary, in which nothing looks for races")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return startCommand(t, environ, exec.Command(path, args...))
}

func startCommand(t *testing.T, environ []string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd}
	p.ended = make(chan struct{})
	p.cmd.Env = append(environ, "PATH="+os.Getenv("PATH"))
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	return p
}

func (p *process) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func TestSignals(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			p := startProcess(t, newService(t).environ())
			p.ready(t)
			p.signal(t, sig)
			if <-p.ended; p.code != 0 {
				t.Errorf("exit code %d: %s", p.code, p.stderr.String())
			}
		})
	}
}

// 500 calls on a token that has just been revoked: all are answered, and the token
// endpoint, slow as it is, is asked once. (Package proxy compares the bodies too.)
func TestRevocationOnTheBinary(t *testing.T) {
	s := newService(t)
	p := startProcess(t, s.environ("USHER_LOG_LEVEL=info"))
	p.ready(t)
	url := p.url(t, "main")
	wantCall(t, url, 200, "accounts")
	before := s.TokenRequests()
	s.Revoke()
	s.FailTokens(sandbox.Fault{Delay: 100 * time.Millisecond})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}}
	var calls sync.WaitGroup
	for range 500 {
		calls.Go(func() {
			body := strings.Replace(query, "{", `{"variables":{"pad":"`+strings.Repeat("x", rand.IntN(20<<10))+`"},`, 1)
			resp, err := client.Post(url+"/graphql", "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || !strings.Contains(string(answer), "Acme") {
				t.Errorf("%d %s %v", resp.StatusCode, answer, err)
			}
		})
	}
	calls.Wait()
	if n := s.TokenRequests() - before; n != 1 {
		t.Errorf("%d token requests, want 1", n)
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	s := newService(t)
	p := startProcess(t, s.environ("USHER_SHUTDOWN_GRACE=10m"))
	p.ready(t)
	entered := make(chan struct{})
	s.OnCall = func(*http.Request, []byte) { close(entered) }
	s.FailGraphQL(sandbox.Fault{Hang: true})
	go http.Post(p.url(t, "main")+"/graphql", "application/json", strings.NewReader(query))
	<-entered
	p.signal(t, syscall.SIGTERM)
	trial.Eventually(t, "shutting down", func() bool { return strings.Contains(p.stderr.String(), "shutting down") })
	p.signal(t, syscall.SIGTERM)
	if <-p.ended; p.code != 1 {
		t.Errorf("exit code %d: %s", p.code, p.stderr.String())
	}
}

func TestExec(t *testing.T) {
	s := newService(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("t0psecret"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := s.environ("USHER_KEY=k3y", "USHER_WEBHOOK_TOKEN=wt0ken", "USHER_PORTS_0_LISTEN=0.0.0.0:1", "USHER_PORTS_0_CLIENT_SECRET=p0secret", "USHER_ADMIN_TOKN=sl1p",
		"USHER_ADMIN_TOKEN_FILE="+file, "USHER_LOG_LEVEL=", "HTTP_PROXY=http://127.0.0.1:1", "NO_PROXY=intranet", "MINE=stays", "USHER_URL=http://old")
	for _, tc := range []struct {
		name, script string
		environ      []string
		code         int
		want         string
	}{
		{"exit code", "exit 7", env, 7, ""},
		{"success", "true", env, 0, ""},
		{"killed", "kill -9 $$", env, 137, ""},
		{"url", `echo "$USHER_URL"`, env, 0, "/graphql\n"},
		{"environment", `env`, env, 0, "MINE=stays\n"},
		{"past the proxy", `env`, env, 0, "NO_PROXY=intranet,127.0.0.1\n"},
		{"past the proxy, in small letters", `env`, env, 0, "no_proxy=intranet,127.0.0.1\n"},
		{"hang-ups ignored, as under nohup", `kill -HUP $PPID; sleep 0.2; echo alive`, nil, 0, "alive\n"},
		{"refused", "echo ran", append(s.environ(), "USHER_CLIENT_SECRET=wr0ng"), 1, "invalid_client"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"exec", "--", "sh", "-c", tc.script}
			p := (*process)(nil)
			if tc.environ == nil {
				path, err := binary()
				if err != nil {
					t.Fatal(err)
				}
				p = startCommand(t, env, exec.Command("sh", append([]string{"-c", `trap '' HUP; exec "$0" "$@"`, path}, args...)...))
			} else {
				p = startProcess(t, tc.environ, args...)
			}
			<-p.ended
			out := p.stdout.String() + p.stderr.String()
			if p.code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("%d, want %d with %q:\n%s", p.code, tc.code, tc.want, out)
			}
			for _, secret := range []string{"t0psecret", "k3y", "wt0ken", "p0secret", "sl1p", file, "wr0ng"} {
				if strings.Contains(out, secret) {
					t.Errorf("%s reaches the command", secret)
				}
			}
			if tc.code == 1 && strings.Contains(out, "ran\n") {
				t.Error("the command ran without a token")
			}
		})
	}
	p := startProcess(t, env, "exec", "--", "no-such-command")
	if <-p.ended; p.code != 127 {
		t.Errorf("no such command: %d", p.code)
	}
}

// The command calls through the port that it was given.
func TestExecCalls(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, newService(t).environ(callAndExit+"=1"), "exec", "--", self)
	if <-p.ended; p.code != 0 || !strings.Contains(p.stdout.String(), "Acme") {
		t.Errorf("%d %s %s", p.code, p.stdout.String(), p.stderr.String())
	}
}

func TestExecPassesSignalsOn(t *testing.T) {
	s := newService(t)
	p := startProcess(t, s.environ(), "exec", "--", "sh", "-c", `trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.1; done`)
	trial.Eventually(t, "running", func() bool { return strings.Contains(p.stdout.String(), "ready") })
	p.signal(t, syscall.SIGTERM)
	if <-p.ended; p.code != 3 || !strings.Contains(p.stdout.String(), "got TERM") {
		t.Errorf("%d %s", p.code, p.stdout.String())
	}

	p = startProcess(t, s.environ(), "exec", "--", "sh", "-c", `echo ready; exec sleep 60`)
	trial.Eventually(t, "running", func() bool { return strings.Contains(p.stdout.String(), "ready") })
	p.signal(t, syscall.SIGHUP)
	if <-p.ended; p.code != 129 {
		t.Errorf("after SIGHUP: %d, want 129", p.code)
	}
}
