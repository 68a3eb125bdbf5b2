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

const usage = `usher stands between your software and the billing service: it puts a token on
each call that leaves, and checks, deduplicates and forwards the webhooks that come.

  usher              serve, as the environment variables say
  usher demo         try it: the same in front of a built-in billing service,
                     without an account, a network or any setting
  usher exec -- CMD ARG...
                     run CMD with USHER_URL set to a port of its own
  usher check        try the settings: tokens, the API, the receiver; opens no port
  usher healthcheck  ask a running usher whether it is ready
  usher inbox        see the webhooks that a running usher keeps, send one again:
                     ls, show ID, redeliver ID..., forget TENANT
  usher entitlements TENANT [FEATURE]
                     ask a running usher what a tenant may use
  usher version      print version, commit and Go version

To call the billing service, set these:

  USHER_BASE_URL       the billing service, such as https://billing.example.com
  USHER_CLIENT_ID      of the API client application
  USHER_CLIENT_SECRET  of the API client application (or USHER_CLIENT_SECRET_FILE)

Then call http://127.0.0.1:8080/graphql as if it were the service, without a token.

To receive its webhooks, set this (it works without the others):

  USHER_WEBHOOK_FORWARD_URL  your receiver, such as http://127.0.0.1:3000/provisioning

Then have the service send its webhooks to http://127.0.0.1:8090/webhooks.
All settings: see the README.
`

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
		fmt.Fprint(p.Stdout, usage)
		return exitOK
	default:
		return p.misused("there is no command %q%s", name, adviseCommand(name))
	}
	if len(args) > 0 && isHelp(args[0]) {
		fmt.Fprint(p.Stdout, usage)
		return exitOK
	}
	if len(args) > 0 {
		return p.misused("usher %s takes no arguments, but got %q", name, strings.Join(args, " "))
	}
	return run(ctx, p)
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

func (p *Process) misused(format string, args ...any) int {
	fmt.Fprintf(p.Stderr, format+"\nusher -h tells what there is\n", args...)
	return exitUsage
}

// settings reads the settings, or prints all that is wrong with them.
func (p *Process) settings(environ []string, needed need) (*Settings, bool) {
	s, err := readSettingsFor(environ, needed)
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
	s, ok := p.settings(p.Environ, needAny)
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
	h, err := build(s, p.Environ, log)
	if err != nil {
		return p.failed(err)
	}
	h.starter = supervisor{systemd: sdnotify.New(p.Environ), serves: p.serves, log: log}
	if err := h.open(); err != nil {
		h.close()
		return p.failed(err)
	}
	log.Info("usher starts", "version", buildVersion())
	if h.gate != nil && s.Webhook.nats == nil {
		log.Info("the gate is made for one replica: with more, each remembers only what it saw itself, and the third of A, B, A could be taken for a duplicate; replicas share an inbox on NATS")
	}
	if err := h.run(ctx); err != nil {
		return p.failed(err)
	}
	return exitOK
}
