// Package serve is the running usher. It builds the parts that the settings switch on, connects them, and
// puts listeners in front of them. The packages that do the work (proxy, webhookgate, inbox, entitlements,
// admin) do not know the settings: serve gives each of them a plain Config, and passes what they report on
// to the metrics and to the admin port.
//
// [Run] has three phases. First usher opens everything, so that an address that is taken is an error at
// start-up. Then it serves. At the end it closes everything in order, within the time that the settings
// allow.
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
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/logs"
	"usher/internal/outbound"
	"usher/internal/sdnotify"
	"usher/internal/settings"
	"usher/internal/version"
	"usher/proxy"
	"usher/webhookgate"
)

// Config has everything that usher needs to run.
type Config struct {
	Settings  *settings.Settings
	Log       *slog.Logger
	Environ   []string // read for systemd's LISTEN_FDS, NOTIFY_SOCKET and WATCHDOG_USEC
	Listening func()   // called when all ports are open, for the Windows service manager; may be nil
}

// Run serves until ctx ends or a signal arrives.
func Run(ctx context.Context, c Config) error {
	defer tuneGC()()
	defer logs.TakeOver(c.Log)()
	for _, name := range c.Settings.Unknown {
		c.Log.Warn("unknown variable, not used", "name", name)
	}
	for _, u := range c.Settings.Unused {
		c.Log.Warn("setting not used", "name", u.Name, "why", u.Why)
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
		c.Log.Info("run one replica of this gate only: each replica remembers only its own webhooks, and could drop a change as a duplicate. For several replicas set USHER_WEBHOOK_INBOX to a PostgreSQL database")
	}
	u.systemd, u.listening = sdnotify.New(settings.Environment(c.Environ)), c.Listening
	return u.Run(ctx)
}

// Usher is the running program: its listeners, and the parts behind them. A part that is off is nil, and so
// is its listener.
type Usher struct {
	settings  *settings.Settings
	log       *slog.Logger
	running   atomic.Bool
	stopping  atomic.Bool
	systemd   *sdnotify.Notifier // nil if systemd did not start usher
	listening func()             // see Config.Listening

	outbound  *outbound.Outbound
	counts    []portCounts // of its ports, in the same order
	gate      *webhookgate.Gate
	decisions *admin.Decisions   // the gate's last decisions
	owed      *webhookgate.Owed  // whose webhooks got a 5xx; with an inbox, as far as it has not stored that yet
	inbox     *inbox.Inbox       // nil if usher passes webhooks through
	book      *entitlements.Book // what tenants may use; nil if there is no inbox

	listeners            []*listener // all but the admin port's; those of outbound first, in the order of its ports
	gateListener         *listener
	entitlementsListener *listener
	adminListener        *listener
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

// Addresses are the addresses of a running usher: http://host:port, or unix:/path. Those of parts that are
// off are empty.
type Addresses struct{ Calls, Webhooks, Entitlements, Admin string }

// Addresses returns the addresses of an open usher. Calls is that of the main port.
func (u *Usher) Addresses() Addresses {
	a := Addresses{Webhooks: u.gateListener.url(), Entitlements: u.entitlementsListener.url(), Admin: u.adminListener.url()}
	if u.outbound != nil {
		a.Calls = u.listeners[0].url()
	}
	return a
}

// build connects the parts of usher. It opens the inbox, so that an inbox that cannot be opened is an error
// at start-up, but no listener.
func build(s *settings.Settings, log *slog.Logger) (*Usher, error) {
	u := &Usher{settings: s, log: log, owed: webhookgate.NewOwed()}
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
		if u.gateListener.tls != nil {
			m.Certificate(u.gateListener.certificateExpiry)
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

// portCounts counts what happens on a local port. Ports that share a token also share its counts.
type portCounts struct {
	calls  *metrics.Port
	tokens *metrics.Identity
}

func (u *Usher) buildOutbound(m *metrics.Registry) (err error) {
	cfg := u.settings.Outbound.Config
	cfg.Log = u.log
	if u.outbound, err = outbound.New(cfg); err != nil {
		return err
	}
	identities := make(map[*outbound.Identity]*metrics.Identity)
	for _, p := range u.outbound.Ports {
		calls, tokens := m.Port(p.Name, proxy.Failures[:]...), identities[p.Identity]
		if tokens == nil {
			tokens = m.Identity(p.Name)
			identities[p.Identity] = tokens
			p.Source.Fetched, p.Source.EarlyRevoked = tokens.Fetched, tokens.EarlyRevoked
		}
		p.Started, p.Finished, p.Replayed, p.Failed = calls.Started, calls.Finished, calls.Replayed, calls.Failed
		u.counts = append(u.counts, portCounts{calls, tokens})
		u.listeners = append(u.listeners, &listener{variable: p.Variables.Listen, name: p.Name, addr: p.Listen, handler: u.outbound.Handler(p), patience: guard.LocalPatience})
	}
	return nil
}

func (u *Usher) listen(sockets []net.Listener) error {
	var addresses []string
	for _, l := range u.allListeners() {
		addresses = append(addresses, l.variable+" is "+l.addr)
		sockets = l.adopt(sockets)
	}
	if len(sockets) > 0 { // checked before binding: an unused socket may occupy the address of a listener
		closeSockets(sockets)
		return settings.Problems{fmt.Sprintf("the service manager passed a socket for %s, and no listener has that address: %s",
			sockets[0].Addr(), strings.Join(addresses, ", "))}
	}
	for _, l := range u.allListeners() {
		socket, err := l.socket, error(nil)
		if socket == nil {
			socket, err = listen(l.addr)
		}
		if err != nil {
			return fmt.Errorf("%s: can't listen on %s: %w%s", l.variable, l.addr, err, settings.ListenHint(l.variable, err))
		}
		l.handler = draining(&u.stopping, l.handler)
		l.attach(socket, u.log.With("listener", l.name))
	}
	return nil
}

func (u *Usher) allListeners() []*listener {
	if u.adminListener == nil {
		return u.listeners
	}
	return append([]*listener{u.adminListener}, u.listeners...)
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
