package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"usher/internal/secret"
)

// Run serves until ctx ends or a signal arrives. Then it shuts down in order or, on a second signal, at once.
func (u *Usher) Run(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	// A Windows service ignores signals: Windows also sends SIGTERM when any user logs off, and the
	// service manager stops usher through ctx.
	if u.listening == nil {
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
	}

	background, stopBackground := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { secret.Watch(background, u.log, u.settings.Watched...) })
	if u.outbound != nil {
		running.Go(func() { u.outbound.Run(background) })
	}
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
	running.Go(func() { u.systemd.Watch(background) })
	// For a service manager usher is ready when it listens, not when it has a token: otherwise the
	// manager would restart usher during an outage of the billing service, which does not help. /readyz
	// says whether there is a token.
	if u.listening != nil {
		u.listening()
	}
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
		u.log.Warn("USHER_SHUTDOWN_GRACE has passed and something still hangs, such as the inbox's database: usher ends without waiting for it")
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
	select {
	case <-time.After(u.settings.Admin.ShutdownDelay):
	case <-atOnce.Done():
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
			if l.close(grace, limit) != nil {
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
		u.adminListener.close(last, last)
	}
}

func (u *Usher) closeInbox() {
	if u.inbox == nil {
		return
	}
	if err := u.inbox.Close(); err != nil {
		u.log.Error("the inbox could not be closed", "err", err)
	}
}

// notify sends a message to systemd, if systemd started usher.
func (u *Usher) notify(message func() error) {
	if err := message(); err != nil {
		u.log.Warn("cannot reach the service manager at NOTIFY_SOCKET", "err", err)
	}
}

// draining wraps next: once stopping is set, every answer closes its connection, also the answer to a
// request that arrived before. The caller then opens a new connection, to a server that is not shutting
// down. (http.Server.SetKeepAlivesEnabled would close idle connections at once, and break requests that are
// already on their way.)
func draining(stopping *atomic.Bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dw := &drainingWriter{w, stopping}
		dw.closeIfStopping() // for handlers that do not call WriteHeader
		next.ServeHTTP(dw, r)
	})
}

type drainingWriter struct {
	http.ResponseWriter
	stopping *atomic.Bool
}

func (w *drainingWriter) WriteHeader(status int) {
	w.closeIfStopping()
	w.ResponseWriter.WriteHeader(status)
}

func (w *drainingWriter) closeIfStopping() {
	if w.stopping.Load() {
		w.Header().Set("Connection", "close")
	}
}

// Unwrap lets http.ResponseController find the other methods of the ResponseWriter.
func (w *drainingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
