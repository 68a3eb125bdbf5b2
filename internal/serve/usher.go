package serve

import (
	"log/slog"
	"net/http"
	"sync/atomic"

	"usher/internal/admin"
	"usher/internal/admin/metrics"
	"usher/internal/catchup"
	"usher/internal/entitlements"
	"usher/internal/inbox"
	"usher/internal/outbound"
	"usher/internal/sdnotify"
	"usher/internal/settings"
	"usher/webhookgate"
)

// Usher is the running program: its listeners, and the parts behind them. A part that is off is nil, and so
// is its listener.
type Usher struct {
	settings *settings.Settings
	log      *slog.Logger
	running  atomic.Bool
	stopping atomic.Bool
	systemd  *sdnotify.Notifier // nil if systemd did not start usher

	outbound  *outbound.Outbound
	counts    []portCounts // of its ports, in the same order
	gate      *webhookgate.Gate
	decisions *admin.Decisions       // the gate's last decisions
	catchUp   *catchup.CatchUp       // nil: there is none
	inbox     *inbox.Inbox           // nil if usher passes webhooks through
	book      *entitlements.Book     // what tenants may use; nil if there is no inbox
	answers   func() metrics.Answers // of the entitlements port; nil: it is off

	listeners            []*listener // all but the admin port's; those of outbound first, in the order of its ports
	gateListener         *listener
	entitlementsListener *listener
	adminListener        *listener // nil: that port is off
	admin                *admin.Handler
}

// Addresses are the addresses of a running usher: http://host:port, or unix:/path. Those of parts that are
// off are empty.
type Addresses struct{ Calls, Webhooks, Entitlements, Admin string }

// Addresses returns the addresses of an open usher. Calls is that of the main port.
func (u *Usher) Addresses() Addresses {
	a := Addresses{
		Webhooks:     u.gateListener.url(),
		Entitlements: u.entitlementsListener.url(),
		Admin:        u.adminListener.url(),
	}
	if u.outbound != nil {
		a.Calls = u.listeners[0].url()
	}
	return a
}

func (u *Usher) allListeners() []*listener {
	if u.adminListener == nil {
		return u.listeners
	}
	return append([]*listener{u.adminListener}, u.listeners...)
}

func (u *Usher) closeInbox() {
	if u.inbox == nil {
		return
	}
	if err := u.inbox.Close(); err != nil {
		u.log.Error("the inbox could not be closed", "err", err)
	}
}

// portCounts counts what happens on a local port. Ports that share a token also share its counts.
type portCounts struct {
	calls  *metrics.Port
	tokens *metrics.Identity
}

func (u *Usher) addListener(variable, name, addr string, handler http.Handler) *listener {
	l := &listener{variable: variable, name: name, addr: addr, handler: handler}
	u.listeners = append(u.listeners, l)
	return l
}
