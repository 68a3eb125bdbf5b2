package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/guard"
	"usher/internal/peer"
	"usher/internal/secret"
	"usher/internal/settings"
	"usher/internal/stdlog"
)

const (
	exitNotExecutable = 126 // as shells have it
	exitNotFound      = 127

	// tokenPatience is how long exec waits for a token endpoint that it cannot reach.
	tokenPatience = 30 * time.Second
)

// execute is usher exec: it runs a command, and a local port for it.
func execute(ctx context.Context, p Process, args []string) int {
	switch {
	case len(args) == 0:
	case args[0] == "--":
		args = args[1:]
	case len(args) == 1 && args[0] == witnessArg && witnessArg != "":
		return beWitness(p)
	case isHelp(args[0]):
		return p.helpOn("exec")
	case strings.HasPrefix(args[0], "-"):
		return p.misused("usher exec takes no option %q: write usher exec -- CMD ARG...", args[0])
	}
	if len(args) == 0 {
		return p.misused("usher exec needs a command: usher exec -- CMD ARG...")
	}
	if err := hideMemory(); err != nil {
		return p.failed(fmt.Errorf("cannot hide usher's secrets from the command: %w", err))
	}
	s, err := settings.ReadOutbound(jobEnvironment(p.Environ))
	if err != nil {
		fmt.Fprintln(p.Stderr, err)
		return exitUsage
	}
	if settings.Environment(p.Environ)["USHER_LOG_LEVEL"] == "" {
		s.Admin.Level = slog.LevelWarn // standard error is the script's
	}
	return runJob(ctx, p, s, args)
}

// runJob opens the port, waits for a token, and runs the command.
func runJob(ctx context.Context, p Process, s *settings.Settings, args []string) int {
	log := newLog(p.Stderr, &s.Admin)
	defer stdlog.TakeOver(log)()
	o, err := newOutbound(s, log, nil)
	if err != nil {
		return p.failed(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return p.failed(err)
	}
	listener, err = peer.SameUser(listener, log)
	if err != nil {
		return p.failed(err)
	}
	port := o.ports[0]
	port.Listen = listener.Addr().String()
	server := newServer(o.handler(port), log)

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
	defer func() { stop(); o.cutOff.Store(true); server.Close(); running.Wait() }()
	running.Go(func() { o.run(background) })
	running.Go(func() { secret.Watch(background, log, s.Secrets()...) })
	running.Go(func() { _ = server.Serve(guard.Listener(listener, nil, log)) })

	if code, ok := waitForToken(ctx, p, o, signals); !ok {
		return code
	}
	return runCommand(ctx, p, args, "http://"+port.Listen+"/graphql", signals)
}

// jobEnvironment is environ without the settings of ports that exec does not open.
func jobEnvironment(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"USHER_LISTEN", "USHER_KEY", "USHER_KEY_FILE"}, name) ||
			strings.HasPrefix(name, "USHER_PORTS_") || strings.HasPrefix(name, "USHER_WEBHOOK_") ||
			strings.HasPrefix(name, "USHER_ENTITLEMENTS_") || strings.HasPrefix(name, "USHER_ADMIN_")
	})
}

func waitForToken(ctx context.Context, p Process, o *outbound, signals <-chan os.Signal) (code int, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := o.ports[0].source.Ready(ctx)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return p.failed(fmt.Errorf("cannot get a token: %w; %s", err, o.advise(err, &o.ports[0].Port))), false
		}
		return exitOK, true
	case sig := <-signals:
		return signalCode(sig), false
	}
}

// runCommand runs args with the job's environment and returns its exit code.
func runCommand(ctx context.Context, p Process, args []string, url string, signals <-chan os.Signal) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = commandEnvironment(p.Environ, url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Stdin, p.Stdout, p.Stderr
	witness := startWitness(p.Self) // before the command, so that it misses no signal
	defer witness.stop()
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(p.Stderr, "usher:", err)
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return exitNotFound
		}
		return exitNotExecutable
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	cancelled := ctx.Done()
	for {
		select {
		case err := <-ended:
			return exitCode(cmd, err)
		case sig := <-signals:
			if !witness.saw(sig) {
				_ = cmd.Process.Signal(sig) // it may have ended meanwhile
			}
		case <-cancelled:
			terminate(cmd.Process)
			cancelled = nil
		}
	}
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
	if !ours {
		return false
	}
	for _, part := range []string{"SECRET", "TOKEN", "KEY", "PORTS_", "WEBHOOK_", "ENTITLEMENTS_", "ADMIN_"} {
		if strings.Contains(rest, part) {
			return true
		}
	}
	return false
}
