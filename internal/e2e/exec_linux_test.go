package e2e

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"usher/internal/testkit"
)

// asNobody has cmd run as a user without rights, where the test itself is root's: from
// root nothing can be hidden.
func asNobody(cmd *exec.Cmd) {
	if os.Geteuid() != 0 {
		return
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// The command can't read usher's secrets out of usher's process.
func TestExecHidesItself(t *testing.T) {
	t.Parallel()
	path := testkit.Binary(t)
	// The shell's own environment shows that the files are there to be read.
	const script = `cat /proc/$$/environ >/dev/null && echo can read; for f in environ mem maps auxv; do
		head -c 65536 /proc/$PPID/$f >/tmp/nothing.$$ 2>/dev/null && echo "reads $f"; rm -f /tmp/nothing.$$; done; ls /proc/$PPID/fd 2>/dev/null && echo "reads fd"; echo "$USHER_URL"`
	cmd := exec.Command(path, "exec", "--", "sh", "-c", script)
	asNobody(cmd)
	p := startCommand(t, testkit.NewService(t).Environ(), cmd)
	if <-p.Ended; p.Code != 0 || !strings.Contains(p.Stdout.String(), "can read") || strings.Contains(p.Stdout.String(), "reads ") {
		t.Errorf("%d %s %s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
}

// The port answers its own user alone, whoever else finds it.
func TestExecAnswersItsUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("it takes two users")
	}
	path := testkit.Binary(t)
	// The trap comes first: what follows the line can come late, and SIGTERM before it.
	cmd := exec.Command(path, "exec", "--", "sh", "-c", `trap 'exit 0' TERM; echo "$USHER_URL"; while :; do sleep 0.1; done`)
	asNobody(cmd)
	p := startCommand(t, testkit.NewService(t).Environ(), cmd)
	testkit.Eventually(t, "running", func() bool { return strings.HasSuffix(p.Stdout.String(), "/graphql\n") })
	addr := strings.TrimSuffix(strings.TrimPrefix(p.Stdout.String(), "http://"), "/graphql\n")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	testkit.Eventually(t, "said", func() bool { return strings.Contains(p.Stderr.String(), "another user") })
	p.Signal(t, syscall.SIGTERM)
	if <-p.Ended; p.Code != 0 {
		t.Errorf("%d %s", p.Code, p.Stderr.String())
	}
}

// With every signal ignored usher is told of none, and goes on.
func TestExecAllSignalsIgnored(t *testing.T) {
	t.Parallel()
	path := testkit.Binary(t)
	const ignoring = `trap '' HUP INT QUIT TERM USR1 USR2; exec "$0" "$@"`
	// SIGWINCH is not for the command: passed on it would end this one.
	const script = `trap 'echo got it; exit 9' WINCH; kill -WINCH $PPID; sleep 0.3; echo alive`
	p := startCommand(t, testkit.NewService(t).Environ(), exec.Command("sh", "-c", ignoring, path, "exec", "--", "sh", "-c", script))
	if <-p.Ended; p.Code != 0 || p.Stdout.String() != "alive\n" {
		t.Errorf("%d %s %s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
}
