//go:build unix

package job

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// forwardedSignals are the signals that usher forwards to the command.
var forwardedSignals = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// A terminal sends Ctrl-C to every process in its foreground, so the command gets it, too. usher must not
// forward it: to many programs a second Ctrl-C means something else. But `timeout --foreground -s INT usher
// exec …`, or a kill from elsewhere, sends the signal to usher alone, and then usher must forward it. Go does
// not say where a signal came from. So on a terminal usher starts itself once more, in the same process
// group, as a witness: the command gets every signal that the witness gets.

// WitnessArg makes usher exec the witness. It is not for users.
const WitnessArg = "--witness"

const (
	// reportTimeout is how long usher waits for the witness to report a signal that usher has got.
	reportTimeout = 500 * time.Millisecond
	// maxReportAge is the age from which a report belongs to an earlier signal: the system makes one signal
	// of several that come at once, so the witness may have got more of them than usher.
	maxReportAge = time.Second
)

// witness is the second usher process. It is nil without a terminal, or if it cannot be started.
type witness struct {
	cmd     *exec.Cmd
	reports chan report   // closed when the witness has ended
	ended   chan struct{} // closed when it was waited for, too
}

type report struct {
	signal os.Signal
	at     time.Time
}

// startWitness starts self, the path of usher's binary. If self is empty, as in a test, it starts nothing.
func startWitness(self string) *witness {
	tty, err := os.Open("/dev/tty")
	if err != nil || self == "" {
		return nil
	}
	tty.Close()
	cmd := exec.Command(self, "exec", WitnessArg)
	cmd.Env = []string{} // without the secrets
	// When this process ends, in whatever way, the standard input of the witness ends. Then it ends, too.
	_, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if inErr != nil || outErr != nil || cmd.Start() != nil {
		return nil
	}
	w := &witness{cmd: cmd, reports: make(chan report, 16), ended: make(chan struct{})}
	ready := make([]byte, 1)
	_, err = io.ReadFull(out, ready)
	go func() {
		defer close(w.ended)
		w.listen(out)
		_ = cmd.Wait()
	}()
	if err != nil {
		w.stop()
		return nil
	}
	return w
}

// pid returns the process id of the witness, or 0 if there is none.
func (w *witness) pid() int {
	if w == nil {
		return 0
	}
	return w.cmd.Process.Pid
}

func (w *witness) listen(out io.Reader) {
	defer close(w.reports)
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(out, b); err != nil {
			return
		}
		select {
		case w.reports <- report{syscall.Signal(b[0]), time.Now()}:
		default: // nobody reads the reports, because usher ignores these signals
		}
	}
}

// sawSignal reports whether the terminal sent sig to the whole process group, and so to the command.
func (w *witness) sawSignal(sig os.Signal) bool {
	if w == nil || sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return false
	}
	patience := time.After(reportTimeout)
	for {
		select {
		case r, alive := <-w.reports:
			if !alive || r.signal == sig && time.Since(r.at) < maxReportAge {
				return alive
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
	_ = w.cmd.Process.Kill() // a witness that Ctrl-Z has stopped would not end by itself
	<-w.ended
}

// Witness writes the number of each signal that a terminal sends to stdout, until stdin ends.
func Witness(stdin io.Reader, stdout io.Writer) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	_, _ = stdout.Write([]byte{0}) // the witness is ready
	for {
		select {
		case sig := <-signals:
			_, _ = stdout.Write([]byte{byte(sig.(syscall.Signal))})
		case <-ended:
			return
		}
	}
}
