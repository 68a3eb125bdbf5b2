// Package command has usher's commands: it parses their arguments, prints their help and their results,
// and decides on the exit code. The commands that keep running are packages of their own (serve, demo,
// job, sandbox). The others either call the admin port of a running usher or try the settings.
//
// [Main] gets the arguments, the environment and the standard streams from its caller, so that a test
// can run the whole program.
package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"usher/internal/demo"
	"usher/internal/job"
	"usher/internal/logs"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/text"
	"usher/internal/version"
)

// The exit codes of all commands except exec, which exits with the code of the command that it runs.
const (
	exitOK      = 0
	exitFailed  = 1 // it failed while running, for example because a port is taken
	exitUsage   = 2 // the settings or the arguments are wrong
	exitDiffers = 3 // reconcile has left something that differs
)

// Process is what the operating system gives to a program.
type Process struct {
	Called  string   // the program's name, as it was typed; if empty, usher
	Args    []string // what follows it
	Environ []string // as os.Environ gives it
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Self    string // the path of usher's binary; if empty, usher never starts itself a second time

	command  string   // the command that runs, such as "inbox"
	envFiles []string // the files given with --env-file
}

// commands are usher's commands, by name. Their help is in commandHelp.
var commands = map[string]func(ctx context.Context, p *Process, args []string) error{
	"demo":         noArgs(demoCommand),
	"sandbox":      sandboxCommand,
	"exec":         execCommand,
	"reconcile":    reconcileCommand,
	"check":        noArgs(checkCommand),
	"healthcheck":  noArgs(healthcheckCommand),
	"status":       statusCommand,
	"inbox":        inboxCommand,
	"entitlements": entitlementsCommand,
	"help":         helpCommand,
	"version":      noArgs(versionCommand),
}

// noArgs makes a command that refuses arguments.
func noArgs(run func(context.Context, *Process) error) func(context.Context, *Process, []string) error {
	return func(ctx context.Context, p *Process, args []string) error {
		if len(args) > 0 {
			return usageErrorf("takes no arguments, but got %q", strings.Join(args, " "))
		}
		return run(ctx, p)
	}
}

// Main runs usher and returns its exit code. When ctx ends, usher shuts down gracefully.
func Main(ctx context.Context, p Process) int { return p.exit(p.run(ctx)) }

func (p *Process) run(ctx context.Context) error {
	args, err := p.parseEnvFileFlags()
	if err != nil {
		return err
	}
	if p.Environ, err = settings.WithFiles(p.Environ, p.envFiles...); err != nil {
		return err
	}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} { // package x509 reads these itself
		if value := settings.Environment(p.Environ)[name]; value != "" && len(p.envFiles) > 0 {
			os.Setenv(name, value)
		}
	}
	if len(args) == 0 {
		return serveCommand(ctx, p)
	}
	name, args := args[0], args[1:]
	switch name {
	case "-v", "-version", "--version":
		name = "version"
	case "-h", "-help", "--help":
		name = "help"
	}
	run := commands[name]
	if option, _, _ := strings.Cut(name, "="); run == nil && strings.HasPrefix(name, "-") {
		return unknown("flag", option, []string{"--env-file", "--help", "--version"})
	}
	if run == nil {
		return unknown("command", name, slices.Sorted(maps.Keys(commandHelp)))
	}
	p.command = name
	if len(args) > 0 && isHelp(args[0]) {
		return flag.ErrHelp
	}
	return run(ctx, p, args)
}

var envFileFlag = regexp.MustCompile(`^--?env-file(=|$)`)

// parseEnvFileFlags fills p.envFiles from the --env-file flags, which stand before the command, and
// returns the arguments after them.
func (p *Process) parseEnvFileFlags() ([]string, error) {
	args := p.Args
	for len(args) > 0 && envFileFlag.MatchString(args[0]) {
		_, file, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if !joined && len(args) > 0 {
			file, args = args[0], args[1:]
		}
		if file == "" {
			return nil, usageErrorf("--env-file needs a file: usher --env-file FILE COMMAND")
		}
		p.envFiles = append(p.envFiles, file)
	}
	return args, nil
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// usageError says what is wrong with the arguments.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitCode ends a command that has already printed why it failed.
type exitCode int

func (code exitCode) Error() string { return fmt.Sprintf("exit code %d", int(code)) }

// exit prints why a command failed, or its help, and returns the exit code.
func (p *Process) exit(err error) int {
	code, isCode := errors.AsType[exitCode](err)
	_, isUsage := errors.AsType[usageError](err)
	_, isSettings := errors.AsType[settings.Problems](err)
	refused, isRefused := errors.AsType[*apiError](err)
	switch {
	case err == nil:
		return exitOK
	case isCode:
		return int(code)
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.Stdout, commandHelp[p.command])
		return exitOK
	case isUsage:
		command := strings.TrimSpace("usher " + p.command)
		typed := strings.TrimSpace(p.program() + " " + p.command)
		fmt.Fprintf(p.Stderr, "%s: %v. Run '%s -h' for help.\n", command, err, typed)
		return exitUsage
	case isSettings:
		fmt.Fprintln(p.Stderr, err)
		return exitUsage
	}
	fmt.Fprintln(p.Stderr, "usher:", err)
	if isRefused && refused.status == http.StatusBadRequest {
		return exitUsage
	}
	return exitFailed
}

// program returns how the user can call this program in a shell: as it was called, except that 'go run' builds
// into a temporary folder, and that a whole path is what service managers and scripts write, not people.
func (p *Process) program() string {
	switch {
	case strings.Contains(filepath.ToSlash(p.Called), "/go-build"):
		return "go run ."
	case p.Called == "" || filepath.IsAbs(p.Called):
		return "usher"
	}
	return text.Quote(p.Called)
}

// commandLine changes a command line of usher, such as "usher inbox resume", so that a user who copies it calls
// this program and reaches the same usher: it adds the --env-file flags of this command.
func (p *Process) commandLine(command string) string {
	rest := strings.TrimPrefix(command, "usher")
	for _, file := range slices.Backward(p.envFiles) {
		rest = " --env-file " + text.Quote(file) + rest
	}
	return p.program() + rest
}

// commandLines does the same to all command lines in a sentence, which are between quotes. 'usher
// help' reads no settings.
func (p *Process) commandLines(sentence string) string {
	sentence = strings.ReplaceAll(sentence, "'usher ", "'"+p.commandLine("usher "))
	return strings.ReplaceAll(sentence, "'"+p.commandLine("usher help "), "'"+p.program()+" help ")
}

// unknown returns an error that suggests the command or the flag that the user probably meant, or lists all.
func unknown(what, name string, known []string) error {
	if meant := settings.Nearest(name, known); meant != "" {
		return usageErrorf("unknown %s %q (did you mean %s?)", what, name, meant)
	}
	return usageErrorf("unknown %s %q: use %s", what, name, strings.Join(known, ", "))
}

// serveCommand is usher without a command: it serves until ctx ends or a signal stops it.
func serveCommand(ctx context.Context, p *Process) error {
	s, err := settings.Read(p.Environ)
	if err != nil {
		return err
	}
	log := logs.New(p.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level)
	return serve.Run(ctx, serve.Config{Settings: s, Log: log, Environ: p.Environ})
}

func demoCommand(ctx context.Context, p *Process) error {
	return demo.Run(ctx, demo.Config{Program: p.program(), Environ: p.Environ, Stdout: p.Stdout, Stderr: p.Stderr})
}

// execCommand is 'usher exec': it runs a command of the user's, which calls the service through a local
// port of its own.
func execCommand(ctx context.Context, p *Process, args []string) error {
	switch {
	case len(args) == 0:
	case args[0] == "--":
		args = args[1:]
	case strings.HasPrefix(args[0], "-"):
		return usageErrorf("takes no option %q: write -- before the command, as in: usher exec -- ./report.sh", args[0])
	}
	if len(args) == 0 {
		return usageErrorf("needs a command, as in: usher exec -- ./report.sh")
	}
	j := newJob(p, args)
	if err := readOutbound(p, j); err != nil {
		return err
	}
	code, err := j.Run(ctx)
	return exitCode(max(code, p.exit(err))) // 126 or 127 if the command cannot be started
}

func newJob(p *Process, args []string) *job.Job {
	return &job.Job{Args: args, Environ: p.Environ, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr}
}

// readOutbound reads the settings of a job that calls the service.
func readOutbound(p *Process, j *job.Job) error {
	s, err := settings.ReadOutbound(p.Environ)
	if err != nil {
		return err
	}
	if settings.Environment(p.Environ)["USHER_LOG_LEVEL"] == "" {
		s.Admin.Level = slog.LevelWarn // the command writes to the same standard error
	}
	s.Outbound.Log = logs.New(p.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level)
	j.Outbound, j.Watched = s.Outbound.Config, s.Watched
	return nil
}

func versionCommand(_ context.Context, p *Process) error {
	fmt.Fprintf(p.Stdout, "usher %s, commit %s, %s\n", version.Number(), version.Commit(), runtime.Version())
	return nil
}

// subcommand is the word after a command, such as ls in 'usher inbox ls'.
type subcommand struct {
	name     string // empty for the command alone, without a subcommand
	flags    string // the names of the flags that it accepts, separated by spaces
	argsHelp string // describes its arguments, for the error message; empty if it takes none
	setArgs  func(args []string) error
	run      func(context.Context) error
}

// errWrongArgs makes parseSubcommand print the argsHelp of a subcommand.
var errWrongArgs = errors.New("wrong arguments")

// parseSubcommand finds the subcommand that args name, and sets its flags and arguments. allFlags has the
// flags of all subcommands.
func parseSubcommand(all []subcommand, allFlags *flag.FlagSet, args []string) (*subcommand, error) {
	name := ""
	if len(args) > 0 && (all[0].name != "" || !strings.HasPrefix(args[0], "-")) {
		name, args = args[0], args[1:]
	}
	i := slices.IndexFunc(all, func(s subcommand) bool { return s.name == name })
	if i < 0 {
		return nil, unknownSubcommand(name, all)
	}
	s := &all[i]
	// Only the sandbox runs without a subcommand.
	flags := flag.NewFlagSet(cmp.Or(name, "sandbox"), flag.ContinueOnError)
	flags.SetOutput(io.Discard) // exit prints the error
	for f := range strings.FieldsSeq(s.flags) {
		flags.Var(allFlags.Lookup(f).Value, f, "")
	}
	rest, err := parseFlags(flags, args)
	switch {
	case err != nil:
	case s.argsHelp == "" && len(rest) > 0:
		err = fmt.Errorf("%s takes no argument %q, only flags", flags.Name(), rest[0])
	case s.setArgs != nil:
		err = s.setArgs(rest)
	}
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return s, err
	case errors.Is(err, errWrongArgs):
		return nil, usageErrorf("%s takes %s", name, s.argsHelp)
	}
	return nil, usageError{err}
}

// oneArg returns a setArgs function for exactly one argument.
func oneArg(set func(arg string) error) func(args []string) error {
	return func(args []string) error {
		if len(args) != 1 {
			return errWrongArgs
		}
		return set(args[0])
	}
}

func unknownSubcommand(name string, all []subcommand) error {
	var names []string
	for _, s := range all {
		if s.name != "" {
			names = append(names, s.name)
		}
	}
	switch {
	case name == "help" || isHelp(name):
		return flag.ErrHelp
	case name == "":
		return usageErrorf("needs one of these commands: %s", strings.Join(names, ", "))
	}
	return unknown("command", name, names)
}

// parseFlags parses flags before, between and after the other arguments, which it returns. (Package flag
// stops at the first argument that is not a flag.) After -- there are no more flags.
func parseFlags(flags *flag.FlagSet, args []string) (others []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, flagProblem(flags, err)
		}
		rest := flags.Args()
		parsed := len(args) - len(rest)
		if len(rest) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(others, rest...), nil
		}
		others, args = append(others, rest[0]), rest[1:]
	}
}

// flagProblem makes errors of package flag say what to write: all flags in place of an unknown
// one, and the kind of value.
func flagProblem(flags *flag.FlagSet, err error) error {
	if invalid, ok := strings.CutSuffix(err.Error(), ": parse error"); ok {
		want := "a whole number"
		switch flags.Lookup(invalid[strings.LastIndex(invalid, " -")+2:]).Value.(flag.Getter).Get().(type) {
		case time.Duration:
			want = "a time such as 10s"
		case bool:
			want = "true or false"
		}
		return fmt.Errorf("%s: write %s", invalid, want)
	}
	unknown, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		return err
	}
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, "--"+f.Name) })
	return fmt.Errorf("%s has no flag --%s: it has %s",
		flags.Name(), unknown, cmp.Or(strings.Join(names, ", "), "none"))
}
