// Package command is usher as a person types it: its commands, their help and their exit codes.
// What runs for a while has a room of its own (serve, demo, job); the other commands ask a running
// usher through its admin port, or try the settings. Arguments, environment and output are passed
// in, so that a test can run the whole of it.
package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
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

	command  string   // which of the commands it is
	envFiles []string // those of --env-file
	serves   func()   // called once usher serves, for Windows' service manager; may be nil
}

// commands are usher's commands, by name. Their help is in commandHelp.
var commands = map[string]func(context.Context, *Process, []string) error{
	"serve": alone(supervised), "demo": alone(demoCommand), "sandbox": sandboxCommand, "exec": execute,
	"check": alone(check), "healthcheck": alone(healthcheck), "inbox": inboxCommand, "entitlements": entitlementsCommand,
	"help": help, "version": alone(printVersion),
}

// alone is a command that takes no arguments.
func alone(run func(context.Context, *Process) error) func(context.Context, *Process, []string) error {
	return func(ctx context.Context, p *Process, args []string) error {
		if len(args) > 0 {
			return misused("usher %s takes no arguments, but got %q", p.command, strings.Join(args, " "))
		}
		return run(ctx, p)
	}
}

// Main runs usher and returns its exit code. When ctx ends, usher shuts down in order.
func Main(ctx context.Context, p Process) int { return p.exit(p.run(ctx)) }

func (p *Process) run(ctx context.Context) error {
	args, err := p.takeEnvFiles()
	if err != nil {
		return err
	}
	if p.Environ, err = settings.WithFiles(p.Environ, p.envFiles...); err != nil {
		return err
	}
	name := "serve"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	if name != "exec" && slices.ContainsFunc(args, envFileFlag.MatchString) {
		return misused("write --env-file before the command: usher --env-file FILE %s", name)
	}
	switch name {
	case "-v", "-version", "--version":
		name = "version"
	case "-h", "-help", "--help":
		name = "help"
	}
	p.command = name
	run := commands[name]
	switch {
	case run == nil:
		return unknownCommand(name)
	case len(args) > 0 && isHelp(args[0]):
		return flag.ErrHelp
	}
	return run(ctx, p, args)
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
			return nil, misused("--env-file needs a file: usher --env-file FILE COMMAND")
		}
		p.envFiles = append(p.envFiles, file)
	}
	return args, nil
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// misuse is a slip in the arguments.
type misuse struct{ error }

func misused(format string, args ...any) error { return misuse{fmt.Errorf(format, args...)} }

// quiet is an exit code that needs no more words: the user knows.
type quiet int

func (code quiet) Error() string { return fmt.Sprintf("exit code %d", int(code)) }

// exit says how a command ended, and returns the exit code.
func (p *Process) exit(err error) int {
	code, isQuiet := errors.AsType[quiet](err)
	_, isMisuse := errors.AsType[misuse](err)
	_, badSettings := errors.AsType[settings.Problems](err)
	refused, isRefused := errors.AsType[*apiError](err)
	switch {
	case err == nil:
		return exitOK
	case isQuiet:
		return int(code)
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.Stdout, commandHelp[p.command])
		return exitOK
	case isMisuse && (p.command == "inbox" || p.command == "sandbox"):
		fmt.Fprintf(p.Stderr, "usher %s: %s Run 'usher %s -h' for help.\n", p.command, sentence(err), p.command)
		return exitUsage
	case isMisuse:
		fmt.Fprintf(p.Stderr, "%v\nRun 'usher -h' for help.\n", err)
		return exitUsage
	case badSettings:
		fmt.Fprintln(p.Stderr, err)
		return exitUsage
	}
	fmt.Fprintln(p.Stderr, "usher:", err)
	if isRefused && refused.status == http.StatusBadRequest {
		return exitUsage
	}
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

// unknownCommand says which command was meant by one that usher does not know.
func unknownCommand(name string) error {
	known := slices.DeleteFunc(slices.Sorted(maps.Keys(commandHelp)), func(name string) bool { return name == "serve" })
	advice := ""
	if meant := settings.Nearest(name, known); meant != "" {
		advice = ": did you mean " + meant + "?"
	} else if strings.ContainsAny(name, `/\`) {
		advice = ": to run a program, write usher exec -- " + name
	}
	return misused("there is no command %q%s", name, advice)
}

func visible(s string) string { return text.Visible(s) }

// serveCommand is usher without a command: it serves until a signal stops it.
func serveCommand(ctx context.Context, p *Process) error {
	s, err := settings.Read(p.Environ)
	if err != nil {
		return err
	}
	log := logs.New(p.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level)
	return serve.Run(ctx, serve.Config{Settings: s, Log: log, Environ: p.Environ, Serves: p.serves})
}

func demoCommand(ctx context.Context, p *Process) error {
	return demo.Run(ctx, demo.Config{Environ: p.Environ, Stdout: p.Stdout, Stderr: p.Stderr, Self: p.Self})
}

// execute is usher exec: it runs a command, and a local port for it.
func execute(ctx context.Context, p *Process, args []string) error {
	switch {
	case len(args) == 0:
	case args[0] == "--":
		args = args[1:]
	case len(args) == 1 && args[0] == job.WitnessArg && job.WitnessArg != "":
		job.Witness(p.Stdin, p.Stdout)
		return nil
	case strings.HasPrefix(args[0], "-"):
		return misused("usher exec takes no option %q: write usher exec -- CMD ARG...", args[0])
	}
	if len(args) == 0 {
		return misused("usher exec needs a command: usher exec -- CMD ARG...")
	}
	j := job.Job{Args: args, Environ: p.Environ, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Self: p.Self}
	code, err := j.Run(ctx)
	return quiet(max(code, p.exit(err))) // bad settings are 2; a command that cannot run has a code of its own
}

func printVersion(_ context.Context, p *Process) error {
	fmt.Fprintf(p.Stdout, "usher %s, commit %s, %s\n", version.Number(), version.Commit(), runtime.Version())
	return nil
}

// verb is what follows a command, such as ls in 'usher inbox ls'.
type verb struct {
	name  string // empty: the command does this by itself
	flags string // the names of the flags that it takes
	takes string // in words, what else it takes; empty: nothing
	take  func(words []string) error
	run   func(context.Context) error
}

// errWords says that words are not what a verb takes.
var errWords = errors.New("these are not the words that it takes")

// parseVerb returns the verb that args name, after it took its words and its flags, which are among all.
func parseVerb(verbs []verb, all *flag.FlagSet, args []string) (*verb, error) {
	name := ""
	if len(args) > 0 && (verbs[0].name != "" || !strings.HasPrefix(args[0], "-")) {
		name, args = args[0], args[1:]
	}
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == name })
	if i < 0 {
		return nil, unknownVerb(name, verbs)
	}
	v := &verbs[i]
	// Only the sandbox does something without a verb.
	flags := flag.NewFlagSet(cmp.Or(name, "sandbox"), flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it all
	for f := range strings.FieldsSeq(v.flags) {
		flags.Var(all.Lookup(f).Value, f, "")
	}
	words, err := parseFlags(flags, args)
	switch {
	case err != nil:
	case v.takes == "" && len(words) > 0:
		err = fmt.Errorf("%s takes no argument %q, only flags", flags.Name(), words[0])
	case v.take != nil:
		err = v.take(words)
	}
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return v, err
	case errors.Is(err, errWords):
		return nil, misused("%s takes %s", name, v.takes)
	}
	return nil, misuse{err}
}

// one takes exactly one word.
func one(take func(word string) error) func(words []string) error {
	return func(words []string) error {
		if len(words) != 1 {
			return errWords
		}
		return take(words[0])
	}
}

func unknownVerb(name string, verbs []verb) error {
	var names []string
	for _, v := range verbs {
		if v.name != "" {
			names = append(names, v.name)
		}
	}
	last := len(names) - 1
	all := strings.Join(names[:last], ", ") + " or " + names[last]
	switch meant := settings.Nearest(name, names); {
	case name == "help" || isHelp(name):
		return flag.ErrHelp
	case name == "":
		return misused("say what to do: %s", all)
	case meant != "":
		return misused("unknown command %q: did you mean %s?", name, meant)
	}
	return misused("unknown command %q: use %s", name, all)
}

// parseFlags parses flags wherever they stand, and returns the other words.
// Package flag stops at the first of these; after -- there are no more flags.
func parseFlags(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, flagProblem(flags, err)
		}
		rest := flags.Args()
		parsed := len(args) - len(rest)
		if len(rest) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(words, rest...), nil
		}
		words, args = append(words, rest[0]), rest[1:]
	}
}

// flagProblem says in our own words that there is no such flag, and which ones there are.
func flagProblem(flags *flag.FlagSet, err error) error {
	unknown, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: ")
	if !ok {
		return err
	}
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, "--"+f.Name) })
	unknown = "--" + strings.TrimLeft(unknown, "-")
	switch meant := settings.Nearest(unknown, names); {
	case unknown == "--outcome" && slices.Contains(names, "--state"):
		return fmt.Errorf("%s has no flag %s: use --state", flags.Name(), unknown)
	case meant != "":
		return fmt.Errorf("%s has no flag %s: did you mean %s?", flags.Name(), unknown, meant)
	case len(names) == 0:
		return fmt.Errorf("%s takes no flags, but got %s", flags.Name(), unknown)
	}
	return fmt.Errorf("%s has no flag %s: it has %s", flags.Name(), unknown, strings.Join(names, ", "))
}
