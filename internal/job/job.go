// Package job is 'usher exec': it runs a command of the user's, and beside it a local port for that
// command alone. The port needs no key, and answers only processes of the same user (on Linux); the
// command sees none of usher's secrets. usher passes signals on, and ends when the command ends.
package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"usher/internal/guard"
	"usher/internal/logs"
	"usher/internal/outbound"
	"usher/internal/peer"
	"usher/internal/secret"
	"usher/internal/settings"
)

const (
	failed        = 1   // usher did, and the command did not run
	notExecutable = 126 // as shells have it
	notFound      = 127

	// tokenPatience is how long a job waits for a token endpoint that it cannot reach.
	tokenPatience = 30 * time.Second
)

// Job is a command, and what it gets from the user.
type Job struct {
	Args    []string // the command and its arguments
	Environ []string // usher's own
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Self    string // the program's own file; empty: usher does not start itself again
}

// Run opens the port, waits for a token, runs the command and returns its exit code. An error says
// why the command did not run.
func (j *Job) Run(ctx context.Context) (code int, err error) {
	if err := hideMemory(); err != nil {
		return failed, fmt.Errorf("cannot hide usher's secrets from the command: %w", err)
	}
	s, err := settings.ReadOutbound(portEnvironment(j.Environ))
	if err != nil {
		return failed, err
	}
	if settings.Environment(j.Environ)["USHER_LOG_LEVEL"] == "" {
		s.Admin.Level = slog.LevelWarn // standard error is the script's
	}
	log := logs.New(j.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level)
	defer logs.TakeOver(log)()
	o, err := outbound.New(s, log, nil)
	if err != nil {
		return failed, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return failed, err
	}
	listener, err = peer.SameUser(listener, log)
	if err != nil {
		return failed, err
	}
	port := o.Ports[0]
	port.Listen = listener.Addr().String()
	server := guard.NewServer(o.Handler(port), log)

	// From here on usher handles every signal: before the command runs a signal ends the
	// wait, afterwards usher passes it on.
	signals := make(chan os.Signal, 8)
	// Signals that are ignored stay so, as under nohup. Notify without a signal would mean all.
	if wanted := slices.DeleteFunc(slices.Clone(passedOn), signal.Ignored); len(wanted) > 0 {
		signal.Notify(signals, wanted...)
		defer signal.Stop(signals)
	}

	background, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() { stop(); server.Close(); running.Wait() }()
	running.Go(func() { o.Run(background) })
	running.Go(func() { secret.Watch(background, log, s.Watched...) })
	running.Go(func() { _ = server.Serve(guard.Listener(listener, nil, log)) })

	if code, err := waitForToken(ctx, o, signals); code != 0 {
		return code, err
	}
	return j.run(ctx, "http://"+port.Listen+"/graphql", signals)
}

// waitForToken returns 0 when there is one.
func waitForToken(ctx context.Context, o *outbound.Outbound, signals <-chan os.Signal) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := o.Ports[0].Source.Ready(ctx)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return failed, fmt.Errorf("cannot get a token: %w; %s", err, o.Advise(err, &o.Ports[0].Port))
		}
		return 0, nil
	case sig := <-signals:
		return 128 + int(sig.(syscall.Signal)), nil
	}
}

func (j *Job) run(ctx context.Context, url string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(j.Args[0], j.Args[1:]...)
	cmd.Env = commandEnvironment(j.Environ, url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = j.Stdin, j.Stdout, j.Stderr
	witness := startWitness(j.Self) // before the command, so that it misses no signal
	defer witness.stop()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return notFound, err
		}
		return notExecutable, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // its state says how it ended
	cancelled := ctx.Done()
	for {
		select {
		case <-ended:
			return exitCode(cmd.ProcessState), nil
		case sig := <-signals:
			if !witness.saw(sig) {
				_ = cmd.Process.Signal(sig) // it may have ended meanwhile
			}
		case <-cancelled:
			if cmd.Process.Signal(syscall.SIGTERM) != nil {
				_ = cmd.Process.Kill() // on Windows there is nothing else
			}
			cancelled = nil
		}
	}
}

// exitCode is what a shell makes of how a command ended.
func exitCode(state *os.ProcessState) int {
	if state == nil {
		return failed
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// otherParts begin the names of settings of what a job does not have.
var otherParts = []string{"PORTS_", "WEBHOOK_", "ENTITLEMENTS_", "ADMIN_"}

// portEnvironment is environ without the settings of ports that a job does not open.
func portEnvironment(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"USHER_LISTEN", "USHER_KEY", "USHER_KEY_FILE"}, name) ||
			slices.ContainsFunc(otherParts, func(part string) bool { return strings.HasPrefix(name, "USHER_"+part) })
	})
}

// commandEnvironment is environ without usher's secrets, and with USHER_URL.
func commandEnvironment(environ []string, url string) []string {
	var env []string
	proxied := false
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == "USHER_URL" || isSecret(name):
			continue
		case slices.Contains([]string{"HTTP_PROXY", "ALL_PROXY"}, strings.ToUpper(name)):
			proxied = true
		}
		env = append(env, kv)
	}
	if proxied {
		// Many clients send even 127.0.0.1 through the proxy unless told not to.
		env = exemptLoopback(env)
	}
	return append(env, "USHER_URL="+url)
}

// exemptLoopback has clients reach 127.0.0.1 without the proxy. It sets both spellings: some
// clients read only one of them.
func exemptLoopback(env []string) []string {
	values := settings.Environment(env)
	exempt := cmp.Or(values["no_proxy"], values["NO_PROXY"])
	switch exempt {
	case "*":
		return env
	case "":
		exempt = "127.0.0.1"
	default:
		exempt = strings.TrimSuffix(exempt, ",") + ",127.0.0.1"
	}
	env = slices.DeleteFunc(env, func(kv string) bool {
		return strings.HasPrefix(kv, "NO_PROXY=") || strings.HasPrefix(kv, "no_proxy=")
	})
	return append(env, "NO_PROXY="+exempt, "no_proxy="+exempt)
}

// isSecret says whether a variable may hold a secret of usher, or name its file. That
// includes names that look like a slip of a secret's name, and addresses.
func isSecret(name string) bool {
	rest, ours := strings.CutPrefix(name, "USHER_")
	parts := append([]string{"SECRET", "TOKEN", "KEY"}, otherParts...)
	return ours && slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(rest, part) })
}
