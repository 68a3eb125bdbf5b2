package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/admin/decisions"
	"usher/internal/admin/metrics"
	"usher/internal/inbox"
	"usher/internal/sdnotify"
	"usher/internal/secret"
	"usher/internal/settings"
	"usher/internal/stdlog"
	"usher/webhookgate"
)

// serve is usher without a command: it serves until it is told to stop.
func serve(ctx context.Context, p Process) int {
	s, ok := p.settings(p.Environ)
	if !ok {
		return exitUsage
	}
	defer tuneGC(p.Environ)()
	log := newLog(p.Stderr, &s.Admin)
	defer stdlog.TakeOver(log)()
	for _, name := range s.Unknown {
		log.Warn("unknown variable, not used", "name", name)
	}
	for _, u := range s.Unused {
		log.Warn("setting not used", "name", u.Name, "why", u.Why)
	}
	u, err := build(s, log)
	if err != nil {
		return p.failed(err)
	}
	u.starter = supervisor{systemd: sdnotify.New(p.Environ), serves: p.serves, log: log}
	if err := u.open(); err != nil {
		u.close()
		return p.failed(err)
	}
	log.Info("usher starts", "version", buildVersion())
	if u.gate != nil && s.Webhook.NATS == nil {
		log.Info("run one replica of this gate only: each replica remembers only its own webhooks, and could drop a change as a duplicate. For several replicas set USHER_WEBHOOK_INBOX to a NATS cluster")
	}
	if err := u.run(ctx); err != nil {
		return p.failed(err)
	}
	return exitOK
}

// usher is the running program: its listeners, and what is behind them.
type usher struct {
	settings *settings.Settings
	log      *slog.Logger
	starter  supervisor
	stopping atomic.Bool

	outbound  *outbound         // nil: off
	gate      *webhookgate.Gate // nil: off
	decisions *decisions.Ring   // the gate's last; nil: off
	inbox     *inbox.Inbox      // nil: webhooks are passed through
	rights    *rights           // what tenants may use; nil: there is no inbox

	listeners []*listener // all but the admin port's
	webhooks  *listener   // the gate's; nil: off
	answers   *listener   // that of entitlements; nil: off
	admin     *listener   // nil: off
}

// build puts usher together. It opens the inbox, but no listener yet: an inbox that usher
// cannot open is an error of start-up.
func build(s *settings.Settings, log *slog.Logger) (*usher, error) {
	u := &usher{settings: s, log: log}
	m := metrics.New(buildVersion(), buildCommit())
	if s.OutboundOn() {
		if err := u.buildOutbound(m); err != nil {
			return nil, err
		}
	}
	var gateMetrics *metrics.Gate
	if s.GateOn() {
		gateMetrics = m.Gate()
		if err := u.buildGate(gateMetrics); err != nil {
			return nil, err
		}
		if u.webhooks.tls != nil {
			m.Certificate(u.webhooks.certificateEnds)
		}
	}
	if s.GateOn() || s.EntitlementsOn() {
		if err := u.buildInbox(m.Inbox(u.inboxFigures)); err != nil {
			return nil, err
		}
	}
	if s.EntitlementsOn() {
		u.buildEntitlements(m.Entitlements(u.rights.index.Len))
	}
	if s.Admin.Listen != "off" {
		u.buildAdmin(m, gateMetrics)
	}
	return u, nil
}

func (u *usher) buildOutbound(metrics *metrics.Registry) (err error) {
	if u.outbound, err = newOutbound(u.settings, u.log, metrics); err != nil {
		return err
	}
	for _, p := range u.outbound.ports {
		p.listener = &listener{variable: p.ListenVariable(), name: p.Name, addr: p.Listen, handler: u.outbound.handler(p)}
		u.listeners = append(u.listeners, p.listener)
	}
	return nil
}

// open binds every listener before usher serves any: an address that is taken is an error of
// start-up.
func (u *usher) open() error {
	for _, l := range u.all() {
		socket, err := listen(l.addr)
		if err != nil {
			return fmt.Errorf("%s: can't listen on %s: %w%s", l.variable, l.addr, err, settings.ListenAdvice(l.variable, err))
		}
		l.handler = draining(&u.stopping, l.handler)
		l.attach(socket, u.log.With("listener", l.name))
	}
	return nil
}

func (u *usher) all() []*listener {
	if u.admin == nil {
		return u.listeners
	}
	return append([]*listener{u.admin}, u.listeners...)
}

// close releases what build and open took, if usher does not run.
func (u *usher) close() {
	for _, l := range u.all() {
		if l.socket != nil {
			l.socket.Close()
		}
	}
	u.closeInbox()
}

// closeIdle closes the connections that are left when no delivery is under way any more.
func (u *usher) closeIdle() {
	if u.gate != nil {
		u.gate.CloseIdleConnections()
	}
}

func (u *usher) closeInbox() {
	if u.inbox == nil {
		return
	}
	if err := u.inbox.Close(); err != nil {
		u.log.Error("the inbox could not be closed", "err", err)
	}
}

// run serves until ctx ends or a signal comes, and then shuts down: in order or, on a second
// signal, at once.
func (u *usher) run(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	u.starter.signals(signals)
	defer signal.Stop(signals)

	background, stopBackground := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { secret.Watch(background, u.log, u.settings.Secrets()...) })
	if u.outbound != nil {
		running.Go(func() { u.outbound.run(background) })
	}
	stopCourier := u.startCourier()

	failed := make(chan error, len(u.listeners)+1)
	for _, l := range u.all() {
		u.log.Info("listening", "listener", l.name, "address", l.url())
		running.Go(func() {
			if err := l.http.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s: %w", l.variable, err)
			}
		})
	}
	running.Go(func() { u.starter.systemd.Watch(background) })
	u.starter.ready()
	var err error
	select {
	case <-ctx.Done():
		u.log.Info("shutting down")
	case sig := <-signals:
		u.log.Info("shutting down", "signal", sig.String())
	case err = <-failed:
		u.log.Error("a listener failed", "err", err)
	}
	u.starter.stopping()
	atOnce, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go func() {
		select {
		case <-signals:
			stop(errSecondSignal)
		case <-atOnce.Done():
		}
	}()
	release := func() { stopBackground(); running.Wait(); u.closeInbox(); u.closeIdle() }
	return errors.Join(err, u.shutdown(atOnce, stopCourier, release))
}

var errSecondSignal = errors.New("a second signal: ended at once")

// shutdown closes everything in order and releases the rest. When atOnce ends, shutdown returns
// its cause at once, also if something hangs, such as the inbox's servers.
func (u *usher) shutdown(atOnce context.Context, stopCourier func(context.Context) error, release func()) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.closeInOrder(atOnce, stopCourier)
		release()
	}()
	select {
	case <-ended:
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
func (u *usher) closeInOrder(atOnce context.Context, stopCourier func(context.Context) error) {
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
			if l.http.Shutdown(limit) != nil {
				u.log.Warn("cut off what was still under way", "listener", l.name)
				if u.outbound != nil {
					u.outbound.cutOff.Store(true)
				}
				l.http.Close()
			}
		})
	}
	if u.gate != nil {
		closing.Go(func() {
			if errors.Join(u.gate.Shutdown(grace), stopCourier(grace)) != nil {
				u.log.Warn("cut off deliveries that were still under way")
			}
		})
	}
	closing.Wait()
	if u.admin != nil {
		last, cancel := context.WithTimeout(atOnce, time.Second)
		defer cancel()
		if u.admin.http.Shutdown(last) != nil {
			u.admin.http.Close()
		}
	}
}
