// Package serve is the running usher. It builds the parts that the settings switch on, gives each a plain Config,
// connects them, and puts listeners in front of them.
//
// [Run] has three phases. First usher opens everything, so that an address that is taken is an error at start-up. Then
// it serves. At the end it closes everything in order, within the time that the settings allow.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"usher/internal/logs"
	"usher/internal/sdnotify"
	"usher/internal/secret"
	"usher/internal/settings"
	"usher/internal/version"
)

// Config has everything that usher needs to run.
type Config struct {
	Settings *settings.Settings
	Log      *slog.Logger
	Environ  []string // read for systemd's LISTEN_FDS, NOTIFY_SOCKET and WATCHDOG_USEC
}

// Run serves until ctx ends or a signal arrives.
func Run(ctx context.Context, c Config) error {
	defer tuneGC()()
	defer logs.TakeOver(c.Log)()
	for _, name := range c.Settings.Unknown {
		c.Log.Warn("unknown variable, not used", "name", name)
	}
	sockets, err := inheritedSockets(c.Environ, os.Getpid(), firstSocket)
	if err != nil {
		return err
	}
	u, err := Open(c.Settings, c.Log, sockets...)
	if err != nil {
		return err
	}
	c.Log.Info("usher starts", "version", version.Number())
	if u.gate != nil && !c.Settings.Webhook.SharedInbox() {
		c.Log.Info("run one replica of this gate only: each replica remembers only its own webhooks, and could drop a " +
			"change as a duplicate. For several replicas set USHER_WEBHOOK_INBOX to a PostgreSQL database")
	}
	u.systemd = sdnotify.New(settings.Environment(c.Environ))
	return u.Run(ctx)
}

// Open builds usher and binds all its listeners. If one of sockets has the address of a listener, the
// listener uses that socket instead of a new one.
func Open(s *settings.Settings, log *slog.Logger, sockets ...net.Listener) (*Usher, error) {
	u, err := build(s, log)
	if err != nil {
		closeSockets(sockets)
		return nil, err
	}
	if err := u.listen(sockets); err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

func (u *Usher) listen(sockets []net.Listener) error {
	var addresses []string
	for _, l := range u.allListeners() {
		addresses = append(addresses, l.variable+" is "+l.addr)
		sockets = l.adopt(sockets)
	}
	if len(sockets) > 0 { // checked before binding: an unused socket may occupy the address of a listener
		closeSockets(sockets)
		return settings.Problems{fmt.Sprintf("the service manager passed a socket for %s, "+
			"and no listener has that address: %s",
			sockets[0].Addr(), strings.Join(addresses, ", "))}
	}
	for _, l := range u.allListeners() {
		socket, err := l.socket, error(nil)
		if socket == nil {
			socket, err = listen(l.addr)
		}
		if err != nil {
			return fmt.Errorf("%s: can't listen on %s: %w", l.variable, l.addr, err)
		}
		l.attach(socket, u.log.With("listener", l.name))
	}
	return nil
}

// Run serves until ctx ends or a signal arrives. Then it shuts down in order or, on a second signal, at once.
func (u *Usher) Run(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	background, stopBackground := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { secret.Watch(background, u.log, u.settings.Watched...) })
	if u.outbound != nil {
		running.Go(func() { u.outbound.Run(background) })
	}
	running.Go(func() { u.admin.Run(background, u.replicaName()) })
	stopCourier := u.startCourier()

	failed := make(chan error, len(u.listeners)+1)
	for _, l := range u.allListeners() {
		u.log.Info("listening", "listener", l.name, "address", l.url())
		running.Go(func() {
			if err := l.http.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s: %w", l.variable, err)
			}
		})
	}
	u.running.Store(true)
	if u.inbox != nil {
		u.inbox.GateIsUp()
	}
	if u.catchUp != nil {
		running.Go(func() { u.catchUp.Run(background) })
	}
	running.Go(func() { u.systemd.Watch(background) })
	// For a service manager usher is ready when it listens, not when it has a token: otherwise the
	// manager would restart usher during an outage of the billing service, which does not help.
	u.notify(u.systemd.Ready)
	var err error
	select {
	case <-ctx.Done():
		u.log.Info("shutting down")
	case sig := <-signals:
		u.log.Info("shutting down", "signal", sig.String())
	case err = <-failed:
		u.log.Error("a listener failed", "err", err)
	}
	u.notify(u.systemd.Stopping)
	atOnce, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go func() {
		select {
		case <-signals:
			stop(errSecondSignal)
		case <-atOnce.Done():
		}
	}()
	release := func() {
		stopBackground()
		running.Wait()
		u.closeInbox()
		u.settings.Webhook.Receivers.CloseIdleConnections()
	}
	return errors.Join(err, u.shutdown(atOnce, stopCourier, release))
}

// startCourier starts to deliver the webhooks in the inbox. stop starts no more deliveries, waits for those
// in progress until its context ends, then cancels them and returns an error.
func (u *Usher) startCourier() (stop func(context.Context) error) {
	if u.inbox == nil {
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	hard, cut := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.inbox.Run(ctx, hard)
	}()
	return func(grace context.Context) error {
		defer cut()
		defer context.AfterFunc(grace, cut)()
		cancel()
		<-ended
		return hard.Err()
	}
}

var errSecondSignal = errors.New("a second signal: ended at once")

// afterGrace is how long usher may take after the grace, for the last answers, the admin port and the inbox.
// Service managers kill a process that takes much longer.
const afterGrace = 3 * time.Second

// shutdown calls closeInOrder, then release. When atOnce ends, shutdown returns its cause within a second.
// If something hangs, for example the inbox's database, shutdown returns after afterGrace all the same: the
// content of the inbox is safe at any moment.
func (u *Usher) shutdown(atOnce context.Context, stopCourier func(context.Context) error, release func()) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.closeInOrder(atOnce, stopCourier)
		release()
	}()
	select {
	case <-ended:
	case <-time.After(u.settings.Admin.ShutdownDelay + u.settings.Admin.ShutdownGrace + afterGrace):
		u.log.Warn("USHER_SHUTDOWN_GRACE has passed and something still hangs, such as the inbox's database: " +
			"usher ends without waiting for it")
	case <-atOnce.Done():
		select {
		case <-ended:
		case <-time.After(time.Second):
		}
	}
	return context.Cause(atOnce)
}

// closeInOrder first reports that usher is not ready, and serves for the delay. Then it accepts no new
// connections, and lets calls and deliveries finish within the grace. The admin port closes last.
func (u *Usher) closeInOrder(atOnce context.Context, stopCourier func(context.Context) error) {
	u.stopping.Store(true)
	for _, l := range u.allListeners() {
		l.http.Drain()
	}
	select {
	case <-time.After(u.settings.Admin.ShutdownDelay):
	case <-atOnce.Done():
	}
	if u.inbox != nil {
		u.inbox.EndWaiting()
	}
	grace, cancel := context.WithTimeout(atOnce, u.settings.Admin.ShutdownGrace)
	defer cancel()
	// A sender whose delivery is cut off at the end of the grace gets a second more for its answer.
	answers, cancel := context.WithTimeout(atOnce, u.settings.Admin.ShutdownGrace+time.Second)
	defer cancel()
	var closing sync.WaitGroup
	for _, l := range u.listeners {
		limit := grace
		if l == u.gateListener {
			limit = answers
		}
		closing.Go(func() {
			if l.close(limit) != nil {
				u.log.Warn("cut off requests that were still in progress", "listener", l.name)
			}
		})
	}
	if u.gate != nil {
		closing.Go(func() {
			if u.gate.Shutdown(grace) != nil {
				u.log.Warn("cut off webhooks that were still in progress")
			}
		})
	}
	closing.Go(func() { // without waiting for the others: other replicas need the leases that it gives back
		if stopCourier(grace) != nil {
			u.log.Warn("cut off deliveries that were still in progress")
		}
	})
	closing.Wait()
	if u.adminListener != nil {
		last, cancel := context.WithTimeout(atOnce, time.Second)
		defer cancel()
		u.adminListener.close(last)
	}
}

// notify sends a message to systemd, if systemd started usher.
func (u *Usher) notify(message func() error) {
	if err := message(); err != nil {
		u.log.Warn("cannot reach the service manager at NOTIFY_SOCKET", "err", err)
	}
}

// close releases what build and listen have opened. It is for an usher that never ran.
func (u *Usher) close() {
	for _, l := range u.allListeners() {
		if l.socket != nil {
			l.socket.Close()
		}
	}
	u.closeInbox()
}
