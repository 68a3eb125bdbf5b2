package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/admin"
	"usher/internal/admin/decisions"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/secret"
	"usher/webhookgate"
)

// house is a running usher: its listeners, and what stands behind them.
type house struct {
	settings  *Settings
	log       *slog.Logger
	outbound  *outbound         // nil: off
	gate      *webhookgate.Gate // nil: off
	decisions *decisions.Ring   // the gate's last; nil: off
	inbox     *inbox.Inbox      // nil: webhooks are passed through
	doors     []*door           // the local ports and the gate
	rights    *rights           // what tenants may use; nil: there is no inbox
	webhooks  *door             // of doors the gate's; nil: off
	answers   *door             // of doors that of entitlements; nil: off
	admin     *door             // nil: off
	starter   supervisor
	stopping  atomic.Bool
}

// door is one listener.
type door struct {
	variable string // that says where it is
	name     string
	addr     string
	handler  http.Handler
	tls      *tls.Config
	closing  func() // told when the server begins to close; may be nil
	listener net.Listener
	server   *http.Server
}

// url is where the door can be reached, once it is open.
func (d *door) url() string {
	if strings.HasPrefix(d.addr, "unix:") {
		return d.addr
	}
	scheme := "http"
	if d.tls != nil {
		scheme = "https"
	}
	addr := d.listener.Addr().String()
	if tcp, ok := d.listener.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		addr = fmt.Sprintf("127.0.0.1:%d", tcp.Port) // what answers there to its name
	}
	return scheme + "://" + addr
}

// build puts an usher together. Of what it uses only the inbox is opened yet: one that
// can't be is an error of start-up.
func build(s *Settings, environ []string, log *slog.Logger) (*house, error) {
	h := &house{settings: s, log: log}
	metrics := admin.NewMetrics(buildVersion(), buildCommit())
	if s.outboundOn() {
		if err := h.buildOutbound(environ, metrics); err != nil {
			return nil, err
		}
	}
	var gateMetrics *admin.Gate
	if s.gateOn() {
		gateMetrics = metrics.Gate()
		if err := h.buildGate(gateMetrics); err != nil {
			return nil, err
		}
		if h.webhooks.tls != nil {
			metrics.Certificate(h.webhooks.certificateEnds)
		}
	}
	if s.gateOn() || s.entitlementsOn() {
		if err := h.buildInbox(metrics.Inbox(h.inboxFigures)); err != nil {
			return nil, err
		}
	}
	if s.entitlementsOn() {
		h.buildEntitlements(metrics.Entitlements(h.rights.index.Len))
	}
	if s.Admin.Listen != "off" {
		cfg := admin.Config{
			Hosts:    guard.NewHosts(s.Admin.Listen, s.Outbound.AllowedHosts, s.Admin.Token != nil),
			Unready:  h.unready,
			Stopping: h.stopping.Load,
			Parts:    h.parts(),
			Metrics:  metrics.Handler(),
			Version:  buildVersion(),
			Log:      log,
		}
		h.show(&cfg, metrics, gateMetrics)
		if s.Admin.Token != nil {
			cfg.Token = s.Admin.Token.Get
		}
		handler := admin.New(cfg)
		h.admin = &door{variable: "USHER_ADMIN_LISTEN", name: "admin", addr: s.Admin.Listen, handler: handler, closing: handler.Close}
	}
	return h, nil
}

func (h *house) buildOutbound(environ []string, metrics *admin.Metrics) (err error) {
	if h.outbound, err = newOutbound(h.settings, environ, h.log, metrics); err != nil {
		return err
	}
	for _, p := range h.settings.Ports {
		h.doors = append(h.doors, &door{
			variable: p.prefix + "LISTEN", name: p.Name, addr: p.Listen,
			handler: h.outbound.handler(p),
		})
	}
	return nil
}

// open binds every listener before anything is served: an address that is taken
// is an error of start-up.
func (h *house) open() error {
	for _, d := range h.all() {
		l, err := listen(d.addr)
		if err != nil {
			return fmt.Errorf("%s: can't listen on %s: %w%s", d.variable, d.addr, err, adviseListener(d.variable, err))
		}
		d.handler = draining(&h.stopping, d.handler)
		d.hang(l, h.log.With("listener", d.name))
	}
	return nil
}

// hang puts the door where l listens.
func (d *door) hang(l net.Listener, log *slog.Logger) {
	d.listener = guard.Listener(l, d.tls, log)
	d.server = newServer(d.handler, log)
	if d.closing != nil {
		d.server.RegisterOnShutdown(d.closing)
	}
}

func (h *house) all() []*door {
	if h.admin == nil {
		return h.doors
	}
	return append([]*door{h.admin}, h.doors...)
}

// close gives back what build and open took, when run was not reached.
func (h *house) close() {
	for _, d := range h.all() {
		if d.listener != nil {
			d.listener.Close()
		}
	}
	h.closeInbox()
}

// hangUp closes the connections that are left when nothing is under way any more.
func (h *house) hangUp() {
	if h.gate != nil {
		h.gate.CloseIdleConnections()
	}
}

func (h *house) closeInbox() {
	if h.inbox == nil {
		return
	}
	if err := h.inbox.Close(); err != nil {
		h.log.Error("the inbox could not be closed", "err", err)
	}
}

// run serves until ctx ends or a signal comes, and then shuts down: orderly, or,
// on a second signal, at once.
func (h *house) run(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	h.starter.signals(signals)
	defer signal.Stop(signals)

	background, stopBackground := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { secret.Watch(background, h.log, h.settings.secrets()...) })
	if h.outbound != nil {
		running.Go(func() { h.outbound.run(background) })
	}
	defer func() { stopBackground(); running.Wait(); h.closeInbox(); h.hangUp() }()
	stopCourier := h.startCourier()

	failed := make(chan error, len(h.doors)+1)
	for _, d := range h.all() {
		h.log.Info("listening", "listener", d.name, "address", d.url())
		running.Go(func() {
			if err := d.server.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s: %w", d.variable, err)
			}
		})
	}
	running.Go(func() { h.starter.systemd.Watch(background) })
	h.starter.ready()
	var err error
	select {
	case <-ctx.Done():
		h.log.Info("shutting down")
	case sig := <-signals:
		h.log.Info("shutting down", "signal", sig.String())
	case err = <-failed:
		h.log.Error("a listener failed", "err", err)
	}
	h.starter.stopping()
	atOnce, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go func() {
		select {
		case <-signals:
			stop(errSecondSignal)
		case <-atOnce.Done():
		}
	}()
	return errors.Join(err, h.shutdown(atOnce, stopCourier))
}

var errSecondSignal = errors.New("a second signal: ended at once")

// shutdown: unready but serving for the delay, then no new connections and what
// is under way may finish within the grace; the admin port closes last. It ends
// early when atOnce does, with its cause.
func (h *house) shutdown(atOnce context.Context, stopCourier func(context.Context) error) error {
	h.stopping.Store(true)
	select {
	case <-time.After(h.settings.Admin.ShutdownDelay):
	case <-atOnce.Done():
	}
	grace, cancel := context.WithTimeout(atOnce, h.settings.Admin.ShutdownGrace)
	defer cancel()
	var closing sync.WaitGroup
	for _, d := range h.doors {
		closing.Go(func() {
			if d.server.Shutdown(grace) != nil {
				h.log.Warn("cut off what was still under way", "listener", d.name)
				d.server.Close()
			}
		})
	}
	if h.gate != nil {
		closing.Go(func() {
			if errors.Join(h.gate.Shutdown(grace), stopCourier(grace)) != nil {
				h.log.Warn("cut off deliveries that were still under way")
			}
		})
	}
	closing.Wait()
	if h.admin != nil {
		last, cancel := context.WithTimeout(atOnce, time.Second)
		defer cancel()
		if h.admin.server.Shutdown(last) != nil {
			h.admin.server.Close()
		}
	}
	return context.Cause(atOnce)
}
