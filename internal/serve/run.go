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

// Run serves until ctx ends or a signal comes, and then shuts down: in order or, on a second
// signal, at once.
func (u *Usher) Run(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	// A Windows service gets none: there SIGTERM comes also when any user logs off, and the
	// service manager has its own way to stop usher.
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
	for _, l := range u.all() {
		u.log.Info("listening", "listener", l.name, "address", l.url())
		running.Go(func() {
			defer close(l.served)
			if err := l.http.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s: %w", l.variable, err)
			}
		})
	}
	running.Go(func() { u.systemd.Watch(background) })
	// usher is ready when it listens, not when it has a token: a manager would give up a start that
	// waits for the billing service and try again, which does not help. /readyz says whether there
	// is a token.
	if u.listening != nil {
		u.listening()
	}
	u.tell(u.systemd.Ready)
	var err error
	select {
	case <-ctx.Done():
		u.log.Info("shutting down")
	case sig := <-signals:
		u.log.Info("shutting down", "signal", sig.String())
	case err = <-failed:
		u.log.Error("a listener failed", "err", err)
	}
	u.tell(u.systemd.Stopping)
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

// afterGrace is what usher takes at most beyond the grace: for last answers, to close the admin port,
// and to close the inbox. Service managers kill what takes much longer.
const afterGrace = 3 * time.Second

// shutdown closes everything in order and releases the rest. When atOnce ends, shutdown returns
// its cause at once. If something hangs, such as the inbox's servers, shutdown does not wait for it
// longer than afterGrace: what is in the inbox is safe at any moment.
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
		u.log.Warn("USHER_SHUTDOWN_GRACE is over, and usher ends without waiting for what still hangs, such as the servers of the inbox")
	case <-atOnce.Done():
		select {
		case <-ended:
		case <-time.After(time.Second):
		}
	}
	return context.Cause(atOnce)
}

// closeInOrder first reports that usher is not ready and serves on for the delay. Then it takes
// no new connections, and lets what is under way finish within the grace. The admin port
// closes last.
func (u *Usher) closeInOrder(atOnce context.Context, stopCourier func(context.Context) error) {
	u.stopping.Store(true)
	select {
	case <-time.After(u.settings.Admin.ShutdownDelay):
	case <-atOnce.Done():
	}
	grace, cancel := context.WithTimeout(atOnce, u.settings.Admin.ShutdownGrace)
	defer cancel()
	// A sender whose delivery is cut off when the grace is over still gets its answer.
	answers, cancel := context.WithTimeout(atOnce, u.settings.Admin.ShutdownGrace+time.Second)
	defer cancel()
	var closing sync.WaitGroup
	for _, l := range u.listeners {
		limit := grace
		if l == u.webhooks {
			limit = answers
		}
		closing.Go(func() {
			if l.close(grace, limit) != nil {
				u.log.Warn("cut off what was still under way", "listener", l.name)
			}
		})
	}
	if u.gate != nil {
		closing.Go(func() {
			u.webhooks.finish(grace) // only then the gate refuses webhooks
			if u.gate.Shutdown(grace) != nil {
				u.log.Warn("cut off webhooks that were still under way")
			}
		})
	}
	closing.Go(func() { // at once: it has leases to give back
		if stopCourier(grace) != nil {
			u.log.Warn("cut off deliveries that were still under way")
		}
	})
	closing.Wait()
	if u.admin != nil {
		last, cancel := context.WithTimeout(atOnce, time.Second)
		defer cancel()
		u.admin.close(last, last)
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

// tell tells the service manager, if it is systemd.
func (u *Usher) tell(what func() error) {
	if err := what(); err != nil {
		u.log.Warn("cannot reach the service manager at NOTIFY_SOCKET", "err", err)
	}
}

// draining wraps next: once stopping is set every answer closes its connection, also the
// answer to a request that came before. The caller then opens a new connection, which goes
// to a server that is not shutting down. (SetKeepAlivesEnabled would close idle connections
// at once, and break requests that are on their way.)
func draining(stopping *atomic.Bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last := &drainingWriter{ResponseWriter: w, stopping: stopping}
		next.ServeHTTP(last, r)
		if !last.begun && stopping.Load() { // net/http is about to write the header
			w.Header().Set("Connection", "close")
		}
	})
}

// drainingWriter decides at the last moment whether its connection may be used again.
type drainingWriter struct {
	http.ResponseWriter
	stopping *atomic.Bool
	begun    bool // the header is written
}

func (w *drainingWriter) WriteHeader(status int) {
	if status >= 200 && !w.begun {
		w.begun = true
		if w.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *drainingWriter) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController looks for.
func (w *drainingWriter) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *drainingWriter) begin() {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
}

// Unwrap lets http.ResponseController find the rest.
func (w *drainingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
