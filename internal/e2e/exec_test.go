//go:build unix

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"usher/internal/testkit"
)

func TestExec(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("t0psecret"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := s.Environ("USHER_KEY=k3y", "USHER_WEBHOOK_TOKEN=wt0ken", "USHER_PORTS_0_LISTEN=0.0.0.0:1", "USHER_PORTS_0_CLIENT_SECRET=p0secret", "USHER_ADMIN_TOKN=sl1p",
		"USHER_ADMIN_TOKEN_FILE="+file, "USHER_NOTIFY_URL=https://chat.example/h00k", "USHER_LOG_LEVEL=", "HTTP_PROXY=http://127.0.0.1:1", "NO_PROXY=intranet", "MINE=stays", "USHER_URL=http://old")
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
		{"refused", "echo ran", append(s.Environ(), "USHER_CLIENT_SECRET=wr0ng"), 1, "invalid_client"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"exec", "--", "sh", "-c", tc.script}
			p := (*testkit.Usher)(nil)
			if tc.environ == nil {
				path := testkit.Binary(t)
				p = startCommand(t, env, exec.Command("sh", append([]string{"-c", `trap '' HUP; exec "$0" "$@"`, path}, args...)...))
			} else {
				p = startProcess(t, tc.environ, args...)
			}
			<-p.Ended
			out := p.Stdout.String() + p.Stderr.String()
			if p.Code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("%d, want %d with %q:\n%s", p.Code, tc.code, tc.want, out)
			}
			for _, secret := range []string{"t0psecret", "k3y", "wt0ken", "p0secret", "sl1p", "h00k", file, "wr0ng"} {
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
	if <-p.Ended; p.Code != 127 {
		t.Errorf("no such command: %d", p.Code)
	}
}

// exec opens a port of its own and no other, whatever the settings of a server beside it say; and
// its port needs no key.
func TestExecOpensOnlyItsPort(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	used := taken(t) // it would be an error to listen there
	p := startProcess(t, testkit.NewService(t).Environ(callAndExit+"=1", "USHER_LISTEN="+used, "USHER_KEY=k3y", "USHER_ADMIN_LISTEN="+used,
		"USHER_WEBHOOK_LISTEN="+used, "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_INBOX=file:/nowhere/inbox.db",
		"USHER_ENTITLEMENTS_LISTEN="+used), "exec", "--", "sh", "-c", `echo "$USHER_URL"; exec "$0"`, self)
	<-p.Ended
	if out := p.Stdout.String(); p.Code != 0 || !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/graphql\n`).MatchString(out) || !strings.Contains(out, "Acme") {
		t.Errorf("%d %s %s", p.Code, out, p.Stderr.String())
	}
}

// exec gives a token endpoint that nobody reaches half a minute, and does not run its command without a token.
func TestExecGivesUp(t *testing.T) {
	if !*long {
		t.Skip("half a minute: with -long")
	}
	t.Parallel() // it waits
	p := startProcess(t, append(testkit.NewService(t).Environ(), "USHER_BASE_URL=http://127.0.0.1:1"), "exec", "--", "echo", "ran")
	<-p.Ended
	if out := p.Stdout.String() + p.Stderr.String(); p.Code != 1 || strings.Contains(out, "ran\n") {
		t.Errorf("%d: %s", p.Code, out)
	}
}

func TestExecPassesSignalsOn(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	p := startProcess(t, s.Environ(), "exec", "--", "sh", "-c", `trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.1; done`)
	testkit.Eventually(t, "running", func() bool { return strings.Contains(p.Stdout.String(), "ready") })
	p.Signal(t, syscall.SIGTERM)
	if <-p.Ended; p.Code != 3 || !strings.Contains(p.Stdout.String(), "got TERM") {
		t.Errorf("%d %s", p.Code, p.Stdout.String())
	}

	p = startProcess(t, s.Environ(), "exec", "--", "sh", "-c", `echo ready; exec sleep 60`)
	testkit.Eventually(t, "running", func() bool { return strings.Contains(p.Stdout.String(), "ready") })
	p.Signal(t, syscall.SIGHUP)
	if <-p.Ended; p.Code != 129 {
		t.Errorf("after SIGHUP: %d, want 129", p.Code)
	}
}
