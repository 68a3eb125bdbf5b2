package serve

import (
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"usher/internal/admin"
	"usher/internal/admin/metrics"
	"usher/internal/guard"
	"usher/internal/inbox/store"
	"usher/internal/text"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

func (u *Usher) buildGate(m *metrics.Gate) (err error) {
	w := &u.settings.Webhook
	cfg := w.Config
	cfg.Log = u.log
	for _, r := range w.Receivers.All() {
		r.Tried = m.Receiver(r.Name).Tried
	}
	u.decisions = admin.NewDecisions(w.Inbox == "")
	cfg.Answered = func(o webhookgate.Outcome) {
		m.Received(o.Decision, o.Took)
		u.decisions.Add(o)
		if o.Webhook != nil && o.Status == http.StatusOK && u.inbox == nil {
			u.refusals.settle(o.Webhook)
		}
	}
	cfg.UnknownType = func(typ string) {
		m.Refused("type")
		u.refusals.unknownType(typ, u.log)
	}
	cfg.Refused = func(r *webhookgate.Refusal) bool {
		m.Refused(r.Reason)
		if u.inbox != nil {
			return u.inbox.Refuse(r)
		}
		u.refusals.add(r)
		return false
	}
	if w.Inbox != "" {
		cfg.Keep = func(w *webhookgate.Webhook) (string, error) { return u.inbox.Keep(w) }
	}
	u.gate = webhookgate.New(cfg)
	l := &listener{variable: "USHER_WEBHOOK_LISTEN", name: "webhooks", addr: w.Listen, handler: u.gate}
	if w.TLSCertFile != "" {
		if l.tls, err = guard.TLSConfig(w.TLSCertFile, w.TLSKeyFile, w.TLSClientCA, u.log); err != nil {
			return err
		}
	}
	u.gateListener = l
	u.listeners = append(u.listeners, l)
	return nil
}

// certificateExpiry returns when the listener's TLS certificate expires. It looks at the files as they are
// now, so a renewed certificate counts from the next scrape of the metrics on.
func (l *listener) certificateExpiry() time.Time {
	current, _ := l.tls.GetConfigForClient(nil) // that of guard.TLSConfig always has a certificate
	return current.Certificates[0].Leaf.NotAfter
}

// refusals counts, for an usher without an inbox, the webhooks whose content was refused although their
// sender was right, until a later snapshot of the same tenant was accepted. It counts no more than an inbox
// would keep. With or without an inbox, it also knows which unknown event types were logged.
type refusals struct {
	mu          sync.Mutex               // guards the fields below
	byLane      map[webhookgate.Lane]int // the empty lane is for webhooks whose tenant is not certain
	lastFaults  string                   // the faults of the last refused webhook
	loggedTypes map[string]bool          // the unknown event types that were logged
}

const maxRefusals = 1000

func (r *refusals) add(w *webhookgate.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastFaults = text.Clip(content.Summary(w.Faults), 512)
	if n := r.byLane[w.Lane]; n < maxRefusals && (n > 0 || len(r.byLane) < maxRefusals) {
		if r.byLane == nil {
			r.byLane = make(map[webhookgate.Lane]int)
		}
		r.byLane[w.Lane]++
	}
}

// settle forgets the refused webhooks of a tenant after a later snapshot of it was accepted.
func (r *refusals) settle(w *webhookgate.Webhook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.Snapshot {
		delete(r.byLane, w.Lane)
	}
}

// state returns how many webhooks were refused, their tenants, and the faults of the last one.
func (r *refusals) state() (n int, tenants []string, lastFaults string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, times := range r.byLane {
		n += times
		if l.Tenant != "" {
			tenants = append(tenants, store.ShowTenant(l.Platform, l.Tenant))
		}
	}
	slices.Sort(tenants)
	return n, tenants, r.lastFaults
}

// unknownType logs an event type that is in neither list of types, once for each type.
func (r *refusals) unknownType(typ string, log *slog.Logger) {
	typ = text.Clip(typ, 200)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loggedTypes[typ] || len(r.loggedTypes) >= maxRefusals {
		return
	}
	if r.loggedTypes == nil {
		r.loggedTypes = make(map[string]bool)
	}
	r.loggedTypes[typ] = true
	log.Warn("webhooks of this type are refused: it is in neither USHER_WEBHOOK_TYPES nor USHER_WEBHOOK_SYNC_TYPES", "type", typ)
}
