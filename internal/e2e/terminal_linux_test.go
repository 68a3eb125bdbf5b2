package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"usher/internal/command"
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

// On a terminal the log has colours, unless NO_COLOR says that there should be none.
func TestLogOnATerminal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		env     []string
		colours bool
	}{
		{nil, true},
		{[]string{"NO_COLOR=1"}, false},
		{[]string{"NO_COLOR="}, true},
		{[]string{"USHER_LOG_FORMAT=json"}, false},
	} {
		keyboard, screen := newTerminal(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			command.Main(ctx, command.Process{Environ: testkit.NewService(t).Environ(append([]string{"USHER_LOG_FORMAT="}, tc.env...)...), Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: screen})
		}()
		line, err := bufio.NewReader(keyboard).ReadString('\n')
		stop()
		go io.Copy(io.Discard, keyboard) // what else it has to say
		<-ended
		if json := strings.HasPrefix(line, "{"); err != nil || strings.Contains(line, "\x1b[") != tc.colours || json != slices.Contains(tc.env, "USHER_LOG_FORMAT=json") {
			t.Errorf("%q: %q, %v", tc.env, line, err)
		}
	}
}

// Ctrl-C is an answer to the question of --apply, too: usher ends without waiting for Enter, and has taken in nothing.
func TestReconcileInterruptedAtTheQuestion(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("acme", "users=1")
	keyboard, screen := newTerminal(t)
	var shown testkit.Output
	go io.Copy(&shown, keyboard)
	cmd := exec.Command(testkit.Binary(t), "reconcile", "--apply", "--", "echo", payload("acme", "users=2"))
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(r.environ, "PATH="+os.Getenv("PATH")), screen, screen, screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	testkit.Eventually(t, "the question", func() bool { return strings.Contains(shown.String(), "[y/N] ") })
	if _, err := keyboard.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	testkit.Eventually(t, "said why", func() bool { return strings.Contains(shown.String(), "reconcile failed: interrupted") })
	if got := r.command("entitlements", "acme", "users"); strings.Contains(got, "2 ") {
		t.Errorf("it was taken in: %s", got)
	}
}
