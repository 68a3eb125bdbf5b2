package command

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"usher/internal/sdnotify"
)

// supervisor is who started usher as a service and wants to know how it stands. It is told
// "ready" when usher listens, not when there has been a token: a start that waits for the
// billing service would be given up and tried again, which helps nobody. Who has to wait for
// a token asks /readyz.
type supervisor struct {
	systemd *sdnotify.Notifier // nil: it is not systemd
	serves  func()             // nil: it is not Windows
	log     *slog.Logger
}

// signals has those that end usher sent to c. As a Windows service it gets none: there
// SIGTERM is also what comes when any user logs off, and who wants it to end says so to the
// service manager.
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
