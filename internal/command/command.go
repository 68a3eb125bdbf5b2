// Package command is usher as a person types it: its commands, their help and their exit codes.
// What runs for a while has a room of its own (serve, demo, job); the other commands ask a running
// usher through its admin port, or try the settings. Arguments, environment and output are passed
// in, so that a test can run the whole of it.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"usher/internal/settings"
	"usher/internal/text"
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

	envFiles []string // those of --env-file
	serves   func()   // called once usher serves, for Windows' service manager; may be nil
}

// Main runs usher and returns its exit code. When ctx ends, usher shuts down in order.
func Main(ctx context.Context, p Process) int {
	args, err := p.takeEnvFiles()
	if err != nil {
		return p.misused("%v", err)
	}
	if p.Environ, err = settings.WithFiles(p.Environ, p.envFiles...); err != nil {
		return p.failed(err)
	}
	name := "serve"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	if name != "exec" && slices.ContainsFunc(args, func(arg string) bool { return envFileFlag.MatchString(arg) }) {
		return p.misused("write --env-file before the command: usher --env-file FILE %s", name)
	}
	var run func(context.Context, Process) int
	switch name {
	case "serve":
		run = supervised
	case "demo":
		run = demoCommand
	case "sandbox":
		return sandboxCommand(ctx, p, args)
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

var envFileFlag = regexp.MustCompile(`^--?env-file(=|$)`)

// takeEnvFiles notes the files of --env-file, which stand before the command, and returns the
// other arguments.
func (p *Process) takeEnvFiles() ([]string, error) {
	args := p.Args
	for len(args) > 0 && envFileFlag.MatchString(args[0]) {
		_, file, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if !joined && len(args) > 0 {
			file, args = args[0], args[1:]
		}
		if file == "" {
			return nil, errors.New("--env-file needs a file: usher --env-file FILE COMMAND")
		}
		p.envFiles = append(p.envFiles, file)
	}
	return args, nil
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

func (p *Process) misused(format string, args ...any) int {
	fmt.Fprintf(p.Stderr, format+"\nRun 'usher -h' for help.\n", args...)
	return exitUsage
}

// ended returns the exit code of what has run.
func (p *Process) ended(err error) int {
	if err != nil {
		return p.failed(err)
	}
	return exitOK
}

// failed says what went wrong, and returns the exit code: bad settings are bad usage.
func (p *Process) failed(err error) int {
	var bad settings.Problems
	if errors.As(err, &bad) {
		fmt.Fprintln(p.Stderr, err)
		return exitUsage
	}
	fmt.Fprintln(p.Stderr, "usher:", err)
	return exitFailed
}

// sentence ends what an error says, if it does not end by itself.
func sentence(err error) string {
	said := err.Error()
	if strings.HasSuffix(said, "?") {
		return said
	}
	return said + "."
}

// line is a command line of usher's, with the files of settings that this command was given: it asks the same usher.
func (p *Process) line(command string) string {
	rest := strings.TrimPrefix(command, "usher")
	for _, file := range slices.Backward(p.envFiles) {
		rest = " --env-file " + file + rest
	}
	return "usher" + rest
}

// adviseCommand says which command was meant by one that usher does not know.
func adviseCommand(name string) string {
	meant := settings.Nearest(name, []string{"demo", "sandbox", "exec", "check", "healthcheck", "inbox", "entitlements", "version", "help"})
	switch {
	case meant != "":
		return ": did you mean " + meant + "?"
	case strings.ContainsAny(name, `/\`):
		return fmt.Sprintf(": to run a program, write usher exec -- %s", name)
	}
	return ""
}

func visible(s string) string { return text.Visible(s) }
