// Package command has usher's commands: it parses their arguments, prints their help and their results,
// and decides on the exit code. The commands that keep running are packages of their own (serve, demo,
// job, sandbox). The others either call the admin port of a running usher or try the settings.
//
//	process.go, arguments.go           what the operating system gives, and the flags and subcommands in it
//	adminapi.go                        calls the admin port of a running usher
//	inbox.go, status.go, …             one command each
//	help.go, command.go                their help; the table of all, and the exit codes
//
// [Main] gets the arguments, the environment and the standard streams from its caller, so that a test
// can run the whole program.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"usher/internal/demo"
	"usher/internal/logs"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/version"
)

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

func versionCommand(_ context.Context, p *Process) error {
	fmt.Fprintf(p.Stdout, "usher %s, commit %s, %s\n", version.Number(), version.Commit(), runtime.Version())
	return nil
}
