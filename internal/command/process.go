package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"usher/internal/settings"
	"usher/internal/text"
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

// usageError says what is wrong with the arguments.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitCode ends a command that has already printed why it failed.
type exitCode int

func (code exitCode) Error() string { return fmt.Sprintf("exit code %d", int(code)) }

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

// confirms asks a question on out, and says whether the answer is yes.
func (p *Process) confirms(ctx context.Context, out io.Writer, question string) (yes bool, err error) {
	fmt.Fprint(out, question, " [y/N] ")
	answers := make(chan string, 1)
	go func() { // a read from a terminal does not end with ctx
		answer, _ := bufio.NewReader(p.Stdin).ReadString('\n') // at the end of the input: no
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case answer := <-answers:
		return answer == "y" || answer == "yes", nil
	case <-ctx.Done():
		fmt.Fprintln(out)
		return false, context.Cause(ctx)
	}
}

// unknown returns an error that suggests the command or the flag that the user probably meant, or lists all.
func unknown(what, name string, known []string) error {
	if meant := settings.Nearest(name, known); meant != "" {
		return usageErrorf("unknown %s %q (did you mean %s?)", what, name, meant)
	}
	return usageErrorf("unknown %s %q: use %s", what, name, strings.Join(known, ", "))
}
