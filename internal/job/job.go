// Package job runs a command of the user's, for 'usher exec' and 'usher reconcile', with a local port for that
// command alone. The port needs no key; on Linux it answers only processes of the same user. The command sees
// none of usher's settings. usher forwards signals to the command, and ends when the command ends.
package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"usher/internal/guard"
	"usher/internal/logs"
	"usher/internal/outbound"
	"usher/internal/peer"
	"usher/internal/secret"
)

const (
	exitFailed        = 1   // usher failed before it could start the command
	exitNotExecutable = 126 // like 127, the code that shells use
	exitNotFound      = 127

	// tokenTimeout is how long usher waits for the first token if it cannot reach the token endpoint.
	tokenTimeout = 30 * time.Second
)

// Job is a command to run, with its environment and standard streams.
type Job struct {
	Outbound outbound.Config // the job opens a port of its own, with the identity of the main port
	Watched  []*secret.Value // the secrets in files, which may change while the command runs
	Args     []string        // the command and its arguments
	Environ  []string        // usher's environment; the command gets it without the secrets
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer

	calls atomic.Int64 // that the service has answered with 2xx
}

// Calls is how many calls of the command the service has answered with success.
func (j *Job) Calls() int { return int(j.calls.Load()) }

// Run opens the port, waits for a token, runs the command and returns its exit code. An error says why the
// command was not started.
func (j *Job) Run(ctx context.Context) (code int, err error) {
	if err := hideMemory(); err != nil {
		return exitFailed, fmt.Errorf("cannot hide usher's secrets from the command: %w", err)
	}
	log := j.Outbound.Log
	defer logs.TakeOver(log)()
	o := outbound.New(j.Outbound)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return exitFailed, err
	}
	listener, err = peer.SameUser(listener, log)
	if err != nil {
		return exitFailed, err
	}
	port := o.Ports[0]
	port.Listen = listener.Addr().String()
	port.Finished = func(status int, _ time.Duration) {
		if status/100 == 2 {
			j.calls.Add(1)
		}
	}
	server := guard.NewServer(o.Handler(port), nil, log)

	// From here on usher handles signals itself. Until the command runs, a signal ends the wait for a
	// token. Afterwards usher forwards it.
	signals, stopSignals := Notify(forwardedSignals...)
	defer stopSignals()

	background, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() { stop(); server.Close(); running.Wait() }()
	running.Go(func() { o.Run(background) })
	running.Go(func() { secret.Watch(background, log, j.Watched...) })
	running.Go(func() { _ = server.Serve(listener) })

	if code, err := waitForToken(ctx, o, signals); code != 0 {
		return code, err
	}
	return j.run(ctx, "http://"+port.Listen+"/graphql", signals)
}

// RunAlone runs the command without a port, and returns its exit code.
func (j *Job) RunAlone(ctx context.Context) (code int, err error) {
	if err := hideMemory(); err != nil {
		return exitFailed, fmt.Errorf("cannot hide usher's secrets from the command: %w", err)
	}
	signals, stop := Notify(forwardedSignals...)
	defer stop()
	return j.run(ctx, "", signals)
}

// Notify returns those of some signals that arrive. Those that are ignored, as under nohup, stay ignored.
func Notify(some ...os.Signal) (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 8)
	some = slices.DeleteFunc(slices.Clone(some), signal.Ignored)
	if len(some) > 0 { // Notify without a signal would mean all signals
		signal.Notify(signals, some...)
	}
	return signals, func() { signal.Stop(signals) }
}

// waitForToken returns 0 when usher has a token, or the exit code if it gets none.
func waitForToken(ctx context.Context, o *outbound.Outbound, signals <-chan os.Signal) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := o.Ports[0].Source.Ready(ctx)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return exitFailed, fmt.Errorf("cannot get a token: %w; %s", err, o.Advise(err, o.Ports[0]))
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
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return exitNotFound, err
		}
		return exitNotExecutable, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // cmd.ProcessState says how it ended
	cancelled := ctx.Done()
	for {
		select {
		case <-ended:
			return exitCode(cmd.ProcessState), nil
		case sig := <-signals:
			if !fromTerminal(sig) {
				_ = cmd.Process.Signal(sig) // an error means that the command has ended meanwhile
			}
		case <-cancelled:
			endProcess(cmd.Process)
			cancelled = nil
		}
	}
}

func endProcess(p *os.Process) {
	if p.Signal(syscall.SIGTERM) != nil {
		_ = p.Kill() // Windows has no SIGTERM
	}
}

// exitCode returns the exit code that a shell would report for a process that ended in this way.
func exitCode(state *os.ProcessState) int {
	if state == nil {
		return exitFailed
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// commandEnvironment returns the command's environment: environ without usher's settings and, if there is a
// port, with USHER_URL.
func commandEnvironment(environ []string, url string) []string {
	var env []string
	given := make(map[string]string)
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "USHER_") { // each may be a secret, name the file of one, or be one's name mistyped
			env = append(env, kv)
		}
		given[name] = value
	}
	if url == "" {
		return env
	}
	// Many clients use a proxy even for 127.0.0.1, unless NO_PROXY has that address. Some read only the name
	// in small letters. Of two values of a variable the later one counts.
	hosts := cmp.Or(given["no_proxy"], given["NO_PROXY"])
	if hosts != "*" {
		hosts = strings.TrimLeft(hosts+",127.0.0.1", ",")
	}
	return append(env, "NO_PROXY="+hosts, "no_proxy="+hosts, "USHER_URL="+url)
}
