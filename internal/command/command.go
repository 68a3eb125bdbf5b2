// Package command is usher as a program: its commands, its settings, and how the
// rooms of the house are put together. Arguments, environment and output are
// passed in, so that a test can run the whole of it.
package command

import (
	"context"
	"fmt"
	"io"
	"strings"

	"usher/internal/sdnotify"
	"usher/internal/settings"
	"usher/internal/stdlog"
)

// What the process ends with. exec ends with its command's own code.
const (
	exitOK     = 0
	exitFailed = 1 // while running; a port that is taken included
	exitUsage  = 2 // bad settings or usage
)

// Process is what a program gets from its surroundings.
type Process struct {
	Args    []string // without the program's name
	Environ []string // as os.Environ gives it
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Self    string // the program's own file; empty where it should not be started again

	serves func() // called once usher serves, for Windows' service manager; may be nil
}

// Main runs usher and returns its exit code. ctx ending is an orderly shutdown.
func Main(ctx context.Context, p Process) int {
	name, args := "serve", p.Args
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	var run func(context.Context, Process) int
	switch name {
	case "serve":
		run = supervised
	case "demo":
		run = demo
	case "exec":
		return execute(ctx, p, args)
	case "check":
		run = check
	case "healthcheck":
		run = healthcheck
	case "inbox":
		return inboxCommand(ctx, p, args)
	case "entitlements":
		return entitlementsCommand(ctx, p, args)
	case "version", "-v", "-version", "--version":
		run = printVersion
	case "-h", "-help", "--help", "help":
		return p.help(args)
	default:
		return p.misused("there is no command %q%s", name, adviseCommand(name))
	}
	if len(args) > 0 && isHelp(args[0]) {
		if strings.HasPrefix(name, "-") {
			name = "version"
		}
		return p.helpOn(name)
	}
	if len(args) > 0 {
		return p.misused("usher %s takes no arguments, but got %q", name, strings.Join(args, " "))
	}
	return run(ctx, p)
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

func (p *Process) misused(format string, args ...any) int {
	fmt.Fprintf(p.Stderr, format+"\nRun 'usher -h' for help.\n", args...)
	return exitUsage
}

// settings reads the settings of an usher that serves, or prints all that is wrong with them.
func (p *Process) settings(environ []string) (*settings.Settings, bool) {
	s, err := settings.Read(environ)
	if err != nil {
		fmt.Fprintln(p.Stderr, err)
		return nil, false
	}
	return s, true
}

func (p *Process) failed(err error) int {
	fmt.Fprintln(p.Stderr, "usher:", err)
	return exitFailed
}

func serve(ctx context.Context, p Process) int {
	s, ok := p.settings(p.Environ)
	if !ok {
		return exitUsage
	}
	defer tuneCollector(p.Environ)()
	log := newLog(p.Stderr, &s.Admin)
	defer stdlog.TakeOver(log)()
	for _, name := range s.Unknown {
		log.Warn("unknown variable, not used", "name", name)
	}
	for _, u := range s.Unused {
		log.Warn("setting not used", "name", u.Name, "why", u.Why)
	}
	h, err := build(s, log)
	if err != nil {
		return p.failed(err)
	}
	h.starter = supervisor{systemd: sdnotify.New(p.Environ), serves: p.serves, log: log}
	if err := h.open(); err != nil {
		h.close()
		return p.failed(err)
	}
	log.Info("usher starts", "version", buildVersion())
	if h.gate != nil && s.Webhook.NATS == nil {
		log.Info("run one replica of this gate only: each replica remembers only its own webhooks, and could drop a change as a duplicate. For several replicas set USHER_WEBHOOK_INBOX to a NATS cluster")
	}
	if err := h.run(ctx); err != nil {
		return p.failed(err)
	}
	return exitOK
}
