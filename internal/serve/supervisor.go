package serve

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"usher/internal/sdnotify"
)

// supervisor is the service manager that started usher. usher reports "ready" when it
// listens, not when it has a token: a manager would give up a start that waits for the
// billing service and try again, which does not help. /readyz says whether there is a token.
type supervisor struct {
	systemd *sdnotify.Notifier // nil: it is not systemd
	serves  func()             // nil: it is not Windows
	log     *slog.Logger
}

// signals sends the signals that end usher to c. A Windows service gets none: there SIGTERM
// comes also when any user logs off, and the service manager has its own way to stop usher.
func (s *supervisor) signals(c chan<- os.Signal) {
	if s.serves == nil {
		signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	}
}

func (s *supervisor) ready() {
	if s.serves != nil {
		s.serves()
	}
	s.tell(s.systemd.Ready)
}

func (s *supervisor) stopping() { s.tell(s.systemd.Stopping) }

func (s *supervisor) tell(what func() error) {
	if err := what(); err != nil {
		s.log.Warn("cannot reach the service manager at NOTIFY_SOCKET", "err", err)
	}
}
