package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"usher/internal/testkit"
)

// newTerminal opens a pseudo-terminal: what a person types goes into keyboard, and
// what is shown comes out of it; screen is what a program has for its three streams.
func newTerminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminal: ", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	return keyboard, screen
}

// countInterrupts is a script that ends with 7 on SIGUSR1, and says then how many
// interrupts it got.
const countInterrupts = `n=0; trap 'n=$((n+1)); echo got INT' INT; trap 'echo "INT came $n times"; exit 7' USR1; echo ready; while :; do sleep 0.1; done`

// Ctrl-C goes to every process in the foreground of a terminal. The command has it
// already, and usher must not give it a second one: to many programs that means
// something else than the first.
func TestExecInterrupted(t *testing.T) {
	t.Parallel()
	path := testkit.Binary(t)
	env := append(testkit.NewService(t).Environ(), "PATH="+os.Getenv("PATH"))
	for _, tc := range []struct {
		name     string
		terminal bool // that usher is in the foreground of
		typed    bool // Ctrl-C; else a signal to usher alone
	}{
		{"on a terminal", true, true},
		{"without one", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keyboard, screen := newTerminal(t)
			var shown testkit.Output
			go io.Copy(&shown, keyboard)

			cmd := exec.Command(path, "exec", "--", "sh", "-c", countInterrupts)
			cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, screen, screen, screen
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: tc.terminal} // of Stdin
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // the script too
			has := func(part string) func() bool {
				return func() bool { return strings.Contains(shown.String(), part) }
			}
			testkit.Eventually(t, "running", has("ready"))
			var err error
			if tc.typed {
				_, err = keyboard.WriteString("\x03")
			} else {
				err = cmd.Process.Signal(os.Interrupt)
			}
			if err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "interrupted", has("got INT"))
			// Usher passes signals on in turn: a second interrupt would be there first.
			if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			testkit.Eventually(t, "counted", has("times"))
			if code := cmd.ProcessState.ExitCode(); code != 7 || !has("INT came 1 times")() {
				t.Errorf("exit code %d, want the script's 7:\n%s", code, shown.String())
			}
		})
	}
}

// onATerminal runs usher on one, and returns what it shows, the keyboard, and how to wait for its end.
func onATerminal(t *testing.T, environ []string, args ...string) (shown *testkit.Output, keyboard *os.File, wait func() int) {
	t.Helper()
	keyboard, screen := newTerminal(t)
	shown = new(testkit.Output)
	go io.Copy(shown, keyboard)
	cmd := exec.Command(testkit.Binary(t), args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, screen, screen, screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return shown, keyboard, func() int { _ = cmd.Wait(); return cmd.ProcessState.ExitCode() }
}

// On a terminal reconcile says how far it is. What the command prints is in a file for its owner alone, that has no
// name. And Ctrl-C is an answer to the question of --apply, too: usher ends without waiting for Enter, and takes in nothing.
func TestReconcileOnATerminal(t *testing.T) {
	t.Parallel()
	o := openOffice(t, newReceiver(t, 200), fileInbox(t.TempDir()))
	o.hears("acme", "users=1")
	temporary := t.TempDir()
	const modes = `; for f in /proc/$PPID/fd/*; do case "$(readlink $f)" in *usher-reconcile-*deleted*) stat -L -c 'mode %a' $f >&2;; esac; done`
	shown, keyboard, wait := onATerminal(t, append(o.environ(), "TMPDIR="+temporary), "reconcile", "--apply", "--", "sh", "-c", "echo '"+payload("acme", "users=2")+"'"+modes)
	testkit.Eventually(t, "the question", func() bool { return strings.Contains(shown.String(), "[y/N] ") })
	if _, err := keyboard.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if code := wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	testkit.Eventually(t, "said why", func() bool { return strings.Contains(shown.String(), "reconcile failed: interrupted") })
	o.want("it", shown.String(), "waiting 5s, because the service's lists may lag, then running the command", "\r1 tenant compared", "mode 600\r\n")
	if left, _ := os.ReadDir(temporary); len(left) > 0 {
		t.Errorf("files are left: %q", left)
	}
	o.want("what acme may use", o.asks("entitlements", "acme", "users"), "limit 1\n")
}
