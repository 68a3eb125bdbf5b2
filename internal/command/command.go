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
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"usher/internal/demo"
	"usher/internal/job"
	"usher/internal/logs"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/text"
	"usher/internal/version"
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
	switch name {
	case "-v", "-version", "--version":
		name = "version"
	case "-h", "-help", "--help":
		name = "help"
	}
	run := withArguments[name]
	alone := withoutArguments[name]
	switch {
	case run == nil && alone == nil:
		return p.misused("there is no command %q%s", name, adviseCommand(name))
	case len(args) > 0 && isHelp(args[0]):
		return p.helpOn(name)
	case run != nil:
		return run(ctx, p, args)
	case len(args) > 0:
		return p.misused("usher %s takes no arguments, but got %q", name, strings.Join(args, " "))
	}
	return alone(ctx, p)
}

var withoutArguments = map[string]func(context.Context, Process) int{
	"serve": supervised, "demo": demoCommand, "check": check, "healthcheck": healthcheck, "version": printVersion,
}

var withArguments = map[string]func(context.Context, Process, []string) int{
	"sandbox": sandboxCommand, "exec": execute, "inbox": inboxCommand, "entitlements": entitlementsCommand, "help": help,
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
	if _, bad := errors.AsType[settings.Problems](err); bad {
		fmt.Fprintln(p.Stderr, err)
		return exitUsage
	}
	fmt.Fprintln(p.Stderr, "usher:", err)
	return exitFailed
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
	known := slices.DeleteFunc(slices.Sorted(maps.Keys(commandHelp)), func(name string) bool { return name == "serve" })
	switch meant := settings.Nearest(name, known); {
	case meant != "":
		return ": did you mean " + meant + "?"
	case strings.ContainsAny(name, `/\`):
		return fmt.Sprintf(": to run a program, write usher exec -- %s", name)
	}
	return ""
}

func visible(s string) string { return text.Visible(s) }

// serveCommand is usher without a command: it serves until a signal stops it.
func serveCommand(ctx context.Context, p Process) int {
	s, err := settings.Read(p.Environ)
	if err != nil {
		return p.failed(err)
	}
	log := logs.New(p.Stderr, &s.Admin, s.Admin.Level)
	return p.ended(serve.Run(ctx, serve.Config{Settings: s, Log: log, Environ: p.Environ, Serves: p.serves}))
}

func demoCommand(ctx context.Context, p Process) int {
	return p.ended(demo.Run(ctx, demo.Config{Environ: p.Environ, Stdout: p.Stdout, Stderr: p.Stderr, Self: p.Self}))
}

// execute is usher exec: it runs a command, and a local port for it.
func execute(ctx context.Context, p Process, args []string) int {
	switch {
	case len(args) == 0:
	case args[0] == "--":
		args = args[1:]
	case len(args) == 1 && args[0] == job.WitnessArg && job.WitnessArg != "":
		job.Witness(p.Stdin, p.Stdout)
		return exitOK
	case strings.HasPrefix(args[0], "-"):
		return p.misused("usher exec takes no option %q: write usher exec -- CMD ARG...", args[0])
	}
	if len(args) == 0 {
		return p.misused("usher exec needs a command: usher exec -- CMD ARG...")
	}
	j := job.Job{Args: args, Environ: p.Environ, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Self: p.Self}
	code, err := j.Run(ctx)
	if err != nil {
		return max(code, p.failed(err)) // bad settings are 2; a command that cannot run has a code of its own
	}
	return code
}

func printVersion(_ context.Context, p Process) int {
	fmt.Fprintf(p.Stdout, "usher %s, commit %s, %s\n", version.Number(), version.Commit(), runtime.Version())
	return exitOK
}
