package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

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

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }
