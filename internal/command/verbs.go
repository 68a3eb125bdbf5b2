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

	"usher/internal/settings"
)

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
