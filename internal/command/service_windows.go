package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// serviceName is what usher is called in the list of services and in the event log.
const serviceName = "usher"

// supervised serves; as a Windows service, if it was started as one.
func supervised(ctx context.Context, p *Process) error {
	if is, err := svc.IsWindowsService(); err != nil || !is {
		return serveCommand(ctx, p)
	}
	// Nobody sees the output of a service, so it goes to the event log. If the source cannot
	// be registered, the event log adds that the description is missing.
	_ = eventlog.InstallAsEventCreate(serviceName, eventlog.Error|eventlog.Warning|eventlog.Info)
	if events, err := eventlog.Open(serviceName); err == nil {
		defer events.Close()
		out := eventWriter{events}
		p.Stdout, p.Stderr = out, out
	}
	s := &windowsService{ctx: ctx, process: p}
	if err := svc.Run(serviceName, s); err != nil {
		return quiet(p.exit(fmt.Errorf("the service manager: %w", err))) // while its log is open
	}
	return quiet(s.code)
}

// windowsService is usher as the service manager sees it.
type windowsService struct {
	ctx     context.Context
	process *Process
	code    int
}

// Execute serves until the manager says stop. An exit code other than 0 is reported as the
// service's own error, so that "sc failureflag usher 1" lets the manager start it again.
func (s *windowsService) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	status <- svc.Status{State: svc.StartPending, WaitHint: milliseconds(time.Minute)}
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	serves, ended := make(chan struct{}, 1), make(chan int, 1)
	s.process.serves = func() { serves <- struct{}{} }
	go func() { ended <- s.process.exit(serveCommand(ctx, s.process)) }()
	for {
		select {
		case <-serves:
			status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: milliseconds(time.Minute)}
				stop()
			}
		case s.code = <-ended:
			return s.code != exitOK, uint32(s.code)
		}
	}
}

func milliseconds(d time.Duration) uint32 { return uint32(d / time.Millisecond) }

// eventWriter puts each line of the log, and what is wrong with the settings, into the
// event log.
type eventWriter struct{ log *eventlog.Log }

func (w eventWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	report := w.log.Error                                       // what is printed and not logged is why usher can't start
	for mark, f := range map[string]func(uint32, string) error{ // as JSON, and as text
		`"level":"DEBUG"`: w.log.Info, `"level":"INFO"`: w.log.Info, `"level":"WARN"`: w.log.Warning,
		" DBG ": w.log.Info, " INF ": w.log.Info, " WRN ": w.log.Warning,
	} {
		if strings.Contains(text, mark) {
			report = f
		}
	}
	if err := report(1, text); err != nil {
		return 0, err
	}
	return len(line), nil
}
