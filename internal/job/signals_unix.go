//go:build unix

package job

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that the command gets instead of usher.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// fromTerminal guesses, without a witness, whether the command has got sig already.
func fromTerminal(sig os.Signal) bool {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// A terminal sends Ctrl-C to every process in its foreground, so the command gets it too.
// usher must not pass it on: to many programs a second Ctrl-C means something else. But
// `timeout --foreground -s INT usher exec …`, or a kill from elsewhere, sends the signal to
// usher alone, and then usher must pass it on. Go does not say where a signal came from. So
// on a terminal usher starts itself once more, in the same process group, as a witness: a
// signal that the witness gets, the command gets as well.

// WitnessArg makes usher exec the witness. It is not for users.
const WitnessArg = "--witness"

const (
	// witnessPatience is how long the witness may take to report a signal that usher has.
	witnessPatience = 500 * time.Millisecond
	// staleSighting is the age from which a report is about an earlier signal.
	staleSighting = time.Second
)

// witness is nil without a terminal, or if usher could not start it.
type witness struct {
	cmd  *exec.Cmd
	seen chan sighting // closed when it has ended
}

type sighting struct {
	signal syscall.Signal
	at     time.Time
}

// startWitness starts self, the path of this program. Without one, as in a test, it starts
// none.
func startWitness(self string) *witness {
	tty, err := os.Open("/dev/tty")
	if err != nil || self == "" {
		return nil
	}
	tty.Close()
	cmd := exec.Command(self, "exec", WitnessArg)
	cmd.Env = []string{} // none of the secrets
	// Its standard input ends when this process ends, in whatever way, and then it ends too.
	_, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if inErr != nil || outErr != nil || cmd.Start() != nil {
		return nil
	}
	w := &witness{cmd: cmd, seen: make(chan sighting, 16)}
	ready := make([]byte, 1)
	if _, err := io.ReadFull(out, ready); err != nil {
		w.stop()
		return nil
	}
	go w.listen(out)
	return w
}

func (w *witness) listen(out io.Reader) {
	defer close(w.seen)
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(out, b); err != nil {
			return
		}
		select {
		case w.seen <- sighting{syscall.Signal(b[0]), time.Now()}:
		default: // nobody asks, as for signals that usher ignores
		}
	}
}

// saw says whether all processes of the group got sig, and so the command.
func (w *witness) saw(sig os.Signal) bool {
	if w == nil || sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return fromTerminal(sig)
	}
	patience := time.After(witnessPatience)
	for {
		select {
		case s, alive := <-w.seen:
			if !alive {
				return fromTerminal(sig)
			}
			if s.signal == sig && time.Since(s.at) < staleSighting {
				return true
			}
		case <-patience:
			return false
		}
	}
}

func (w *witness) stop() {
	if w == nil {
		return
	}
	_ = w.cmd.Process.Kill() // it may have been stopped by Ctrl-Z, and would not end by itself
	_ = w.cmd.Wait()
}

// Witness reports each signal that a terminal sends, until standard input ends.
func Witness(stdin io.Reader, stdout io.Writer) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	_, _ = stdout.Write([]byte{0}) // ready
	for {
		select {
		case sig := <-signals:
			_, _ = stdout.Write([]byte{byte(sig.(syscall.Signal))})
		case <-ended:
			return
		}
	}
}
