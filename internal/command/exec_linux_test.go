package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"usher/internal/trial"
)

// asNobody has cmd run as a user without rights, where the test itself is root's: from
// root nothing can be hidden.
func asNobody(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chmod(filepath.Dir(cmd.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// The command can't read usher's secrets out of usher's process.
func TestExecHidesItself(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	// The shell's own environment shows that the files are there to be read.
	const script = `cat /proc/$$/environ >/dev/null && echo can read; for f in environ mem maps auxv; do
		head -c 65536 /proc/$PPID/$f >/tmp/nothing.$$ 2>/dev/null && echo "reads $f"; rm -f /tmp/nothing.$$; done; ls /proc/$PPID/fd 2>/dev/null && echo "reads fd"; echo "$USHER_URL"`
	cmd := exec.Command(path, "exec", "--", "sh", "-c", script)
	asNobody(t, cmd)
	p := startCommand(t, newService(t).environ(), cmd)
	if <-p.ended; p.code != 0 || !strings.Contains(p.stdout.String(), "can read") || strings.Contains(p.stdout.String(), "reads ") {
		t.Errorf("%d %s %s", p.code, p.stdout.String(), p.stderr.String())
	}
}

// The port answers its own user alone, whoever else finds it.
func TestExecAnswersItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes two users")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "exec", "--", "sh", "-c", `echo "$USHER_URL"; trap 'exit 0' TERM; while :; do sleep 0.1; done`)
	asNobody(t, cmd)
	p := startCommand(t, newService(t).environ(), cmd)
	trial.Eventually(t, "running", func() bool { return strings.HasSuffix(p.stdout.String(), "/graphql\n") })
	url := strings.TrimSuffix(strings.TrimSpace(p.stdout.String()), "/graphql")
	conn := dialURL(t, url)
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	trial.Eventually(t, "said", func() bool { return strings.Contains(p.stderr.String(), "another user") })
	p.signal(t, syscall.SIGTERM)
	if <-p.ended; p.code != 0 {
		t.Errorf("%d %s", p.code, p.stderr.String())
	}
}

// With every signal ignored usher is told of none, and goes on.
func TestExecAllSignalsIgnored(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	const ignoring = `trap '' HUP INT QUIT TERM USR1 USR2; exec "$0" "$@"`
	// SIGWINCH is not for the command: passed on it would end this one.
	const script = `trap 'echo got it; exit 9' WINCH; kill -WINCH $PPID; sleep 0.3; echo alive`
	p := startCommand(t, newService(t).environ(), exec.Command("sh", "-c", ignoring, path, "exec", "--", "sh", "-c", script))
	if <-p.ended; p.code != 0 || p.stdout.String() != "alive\n" {
		t.Errorf("%d %s %s", p.code, p.stdout.String(), p.stderr.String())
	}
}
