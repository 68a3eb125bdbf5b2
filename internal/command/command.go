// Package command is usher as a program: its commands, and how its parts are put
// together. Arguments, environment and output are passed in, so that a test can run the
// whole of it.
package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/lmittmann/tint"

	"usher/internal/settings"
	"usher/internal/terminal"
)

// Exit codes. exec exits with its command's own code.
const (
	exitOK     = 0
	exitFailed = 1 // while running; a port that is taken included
	exitUsage  = 2 // bad settings or usage
)

// Process is what the operating system gives to a program.
type Process struct {
	Args    []string // without the program's name
	Environ []string // as os.Environ gives it
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Self    string // the program's own file; empty: usher does not start itself again

	serves func() // called once usher serves, for Windows' service manager; may be nil
}

// Main runs usher and returns its exit code. When ctx ends, usher shuts down in order.
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

// adviseCommand says which command was meant by one that usher does not know.
func adviseCommand(name string) string {
	meant := settings.Nearest(name, []string{"demo", "exec", "check", "healthcheck", "inbox", "entitlements", "version", "help"})
	switch {
	case meant != "":
		return ": did you mean " + meant + "?"
	case strings.ContainsAny(name, `/\`):
		return fmt.Sprintf(": to run a program, write usher exec -- %s", name)
	}
	return ""
}

// newLog returns the log that the settings ask for, on w.
func newLog(w io.Writer, a *settings.Admin) *slog.Logger { return newLogAt(w, a, a.Level) }

// newLogAt is newLog with a level that may change.
func newLogAt(w io.Writer, a *settings.Admin, level slog.Leveler) *slog.Logger {
	onScreen := terminal.Is(w)
	if a.LogFormat == "json" || a.LogFormat == "auto" && !onScreen {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: inSeconds}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !onScreen || a.NoColour}))
}

// inSeconds writes a duration as a number of seconds, which programs that read logs can
// compare and add up. JSON would have nanoseconds.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

func isTerminal(w io.Writer) bool { return terminal.Is(w) }

func visible(s string) string { return terminal.Visible(s) }
