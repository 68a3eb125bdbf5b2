package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// serviceName is usher's name in the list of services and in the event log.
const serviceName = "usher"

// serveCommand serves, as a Windows service if the service manager started it.
func serveCommand(ctx context.Context, p *Process) error {
	if is, err := svc.IsWindowsService(); err != nil || !is {
		return runUntilStopped(ctx, p)
	}
	// Nobody sees the output of a service, so usher writes it to the event log. If usher cannot
	// register itself as a source, Windows adds to each entry that its description is missing.
	_ = eventlog.InstallAsEventCreate(serviceName, eventlog.Error|eventlog.Warning|eventlog.Info)
	if events, err := eventlog.Open(serviceName); err == nil {
		defer events.Close()
		out := eventWriter{events}
		p.Stdout, p.Stderr = out, out
	}
	s := &windowsService{ctx: ctx, process: p}
	if err := svc.Run(serviceName, s); err != nil {
		return exitCode(p.exit(fmt.Errorf("the service manager: %w", err))) // here, while the event log is open
	}
	return exitCode(s.code)
}

// windowsService implements svc.Handler, which the service manager calls.
type windowsService struct {
	ctx     context.Context
	process *Process
	code    int
}

// Execute serves until the service manager stops it. It reports an exit code other than 0 as an error of
// the service, so that "sc failureflag usher 1" makes the manager restart usher.
func (s *windowsService) Execute(
	_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status,
) (bool, uint32) {
	status <- svc.Status{State: svc.StartPending, WaitHint: milliseconds(time.Minute)}
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	listening, ended := make(chan struct{}, 1), make(chan int, 1)
	s.process.listening = func() { listening <- struct{}{} }
	go func() { ended <- s.process.exit(runUntilStopped(ctx, s.process)) }()
	for {
		select {
		case <-listening:
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

// eventWriter writes each line of usher's log, and the problems of its settings, to the event log.
type eventWriter struct{ log *eventlog.Log }

func (w eventWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	report := w.log.Error                                       // a line without a level says why usher cannot start
	for mark, f := range map[string]func(uint32, string) error{ // the levels in JSON and in text
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
