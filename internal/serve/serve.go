// Package serve is the running usher: the parts that the settings switch on, put together, and
// the listeners in front of them. The rooms that do the work (proxy, webhookgate, inbox,
// entitlements, admin) do not know the settings: here each gets what it needs as a plain struct,
// and what it reports goes to the metrics and to the admin port. Run is the whole of it: usher
// opens everything first, so that an address that is taken is an error of start-up; then it
// serves; and at the end it closes all in order, within the time that the settings give.
package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"usher/internal/admin"
	"usher/internal/admin/metrics"
	"usher/internal/entitlements"
	"usher/internal/inbox"
	"usher/internal/logs"
	"usher/internal/outbound"
	"usher/internal/sdnotify"
	"usher/internal/settings"
	"usher/internal/version"
	"usher/webhookgate"
)

// Config is what usher is put together from.
type Config struct {
	Settings *settings.Settings
	Log      *slog.Logger
	Environ  []string // GOGC, the sockets that systemd passed, and where it wants to hear from usher
	Serves   func()   // called once usher serves, for Windows' service manager; may be nil
}

// Run serves until ctx ends or a signal comes.
func Run(ctx context.Context, c Config) error {
	defer tuneGC(c.Environ)()
	defer logs.TakeOver(c.Log)()
	for _, name := range c.Settings.Unknown {
		c.Log.Warn("unknown variable, not used", "name", name)
	}
	for _, u := range c.Settings.Unused {
		c.Log.Warn("setting not used", "name", u.Name, "why", u.Why)
	}
	sockets, err := inherited(c.Environ, os.Getpid(), firstSocket)
	if err != nil {
		return err
	}
	u, err := Open(c.Settings, c.Log, sockets...)
	if err != nil {
		return err
	}
	c.Log.Info("usher starts", "version", version.Number())
	if u.gate != nil && !c.Settings.Webhook.SharedInbox() {
		c.Log.Info("run one replica of this gate only: each replica remembers only its own webhooks, and could drop a change as a duplicate. For several replicas set USHER_WEBHOOK_INBOX to a PostgreSQL database")
	}
	u.systemd, u.serves = sdnotify.New(settings.Environment(c.Environ)), c.Serves
	return u.Run(ctx)
}

// Usher is the running program: its listeners, and what is behind them.
type Usher struct {
	settings *settings.Settings
	log      *slog.Logger
	stopping atomic.Bool
	systemd  *sdnotify.Notifier // nil: it did not start usher
	serves   func()             // for Windows' service manager; nil: it did not start usher

	outbound  *outbound.Outbound // nil: off
	gate      *webhookgate.Gate  // nil: off
	decisions *admin.Decisions   // the gate's last; nil: off
	refusals  refusals           // without an inbox
	inbox     *inbox.Inbox       // nil: webhooks are passed through
	book      *entitlements.Book // what tenants may use; nil: there is no inbox

	listeners []*listener // all but the admin port's; those of outbound first, in the order of its ports
	webhooks  *listener   // the gate's; nil: off
	answers   *listener   // that of entitlements; nil: off
	admin     *listener   // nil: off
}

// Open puts usher together and binds every listener, before usher serves any: an address that is
// taken is an error of start-up. A listener takes the socket of its address, if there is one.
func Open(s *settings.Settings, log *slog.Logger, sockets ...net.Listener) (*Usher, error) {
	u, err := build(s, log)
	if err != nil {
		closeAll(sockets)
		return nil, err
	}
	if err := u.listen(sockets); err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// Addresses is where the parts of an usher can be reached: http://host:port, or unix:/path. What is
// off has none.
type Addresses struct{ Calls, Webhooks, Entitlements, Admin string }

// Addresses says where an open usher can be reached; calls go to the main port.
func (u *Usher) Addresses() Addresses {
	a := Addresses{Webhooks: u.webhooks.url(), Entitlements: u.answers.url(), Admin: u.admin.url()}
	if u.outbound != nil {
		a.Calls = u.listeners[0].url()
	}
	return a
}

// build puts usher together. It opens the inbox, but no listener yet: an inbox that usher
// cannot open is an error of start-up.
func build(s *settings.Settings, log *slog.Logger) (*Usher, error) {
	u := &Usher{settings: s, log: log}
	m := metrics.New(version.Number(), version.Commit())
	if s.OutboundOn() {
		if err := u.buildOutbound(m); err != nil {
			return nil, err
		}
	}
	var gateMetrics *metrics.Gate
	if s.GateOn() {
		gateMetrics = m.Gate(s.Webhook.Receivers)
		if err := u.buildGate(gateMetrics); err != nil {
			return nil, err
		}
		if u.webhooks.tls != nil {
			m.Certificate(u.webhooks.certificateEnds)
		}
	}
	if s.GateOn() || s.EntitlementsOn() {
		if err := u.buildInbox(m); err != nil {
			return nil, err
		}
	}
	if s.EntitlementsOn() {
		u.buildEntitlements(m)
	}
	if s.Admin.Listen != "off" {
		u.buildAdmin(m, gateMetrics)
	}
	return u, nil
}

func (u *Usher) buildOutbound(metrics *metrics.Registry) (err error) {
	if u.outbound, err = outbound.New(u.settings, u.log, metrics); err != nil {
		return err
	}
	for _, p := range u.outbound.Ports {
		u.listeners = append(u.listeners, &listener{variable: p.ListenVariable(), name: p.Name, addr: p.Listen, handler: u.outbound.Handler(p)})
	}
	return nil
}

func (u *Usher) listen(sockets []net.Listener) error {
	var have []string
	for _, l := range u.all() {
		have = append(have, l.variable+" is "+l.addr)
		sockets = l.take(sockets)
	}
	if len(sockets) > 0 { // before usher binds anything: it may be taken by that very socket
		closeAll(sockets)
		return settings.Problems{fmt.Sprintf("the service manager passed a socket for %s, and no listener has that address: %s",
			sockets[0].Addr(), strings.Join(have, ", "))}
	}
	for _, l := range u.all() {
		socket, err := l.socket, error(nil)
		if socket == nil {
			socket, err = listen(l.addr)
		}
		if err != nil {
			return fmt.Errorf("%s: can't listen on %s: %w%s", l.variable, l.addr, err, settings.ListenAdvice(l.variable, err))
		}
		l.handler = draining(&u.stopping, l.handler)
		l.attach(socket, u.log.With("listener", l.name))
	}
	return nil
}

func (u *Usher) all() []*listener {
	if u.admin == nil {
		return u.listeners
	}
	return append([]*listener{u.admin}, u.listeners...)
}

// close releases what build and open took, if usher does not run.
func (u *Usher) close() {
	for _, l := range u.all() {
		if l.socket != nil {
			l.socket.Close()
		}
	}
	u.closeInbox()
}
