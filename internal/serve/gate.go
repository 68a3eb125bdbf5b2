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
	u.webhooks = l
	u.listeners = append(u.listeners, l)
	return nil
}

// certificateEnds says when the gate's own TLS certificate ends. It looks at the files as they
// are now: a renewed one counts from the next scrape on, also before the next sender comes.
func (l *listener) certificateEnds() time.Time {
	current, err := l.tls.GetConfigForClient(nil)
	if err != nil || len(current.Certificates) == 0 {
		return time.Time{} // does not happen: guard.TLSConfig always has one
	}
	return current.Certificates[0].Leaf.NotAfter
}

// refusals are the webhooks of the right sender that were refused and that nobody has dealt with.
// Without an inbox they are counted in memory, only as many as an inbox would keep.
type refusals struct {
	mu    sync.Mutex               // guards what follows
	lanes map[webhookgate.Lane]int // the lane of those whose tenant is not certain is empty
	last  string                   // what is wrong with the last one
	types map[string]bool          // those that were logged
}

const maxRefusals = 1000

func (r *refusals) add(w *webhookgate.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = text.Clip(content.Words(w.Faults), 512)
	if n := r.lanes[w.Lane]; n < maxRefusals && (n > 0 || len(r.lanes) < maxRefusals) {
		if r.lanes == nil {
			r.lanes = make(map[webhookgate.Lane]int)
		}
		r.lanes[w.Lane]++
	}
}

// settle notes a later snapshot of the same tenant that was taken.
func (r *refusals) settle(w *webhookgate.Webhook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.Snapshot {
		delete(r.lanes, w.Lane)
	}
}

// state says how many there are, of which tenants, and what is wrong with the last one.
func (r *refusals) state() (n int, tenants []string, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, times := range r.lanes {
		n += times
		if l.Tenant != "" {
			tenants = append(tenants, store.ShowTenant(l.Platform, l.Tenant))
		}
	}
	slices.Sort(tenants)
	return n, tenants, r.last
}

// unknownType logs a type that is in neither list, once for each.
func (r *refusals) unknownType(typ string, log *slog.Logger) {
	typ = text.Clip(typ, 200)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.types[typ] || len(r.types) >= maxRefusals {
		return
	}
	if r.types == nil {
		r.types = make(map[string]bool)
	}
	r.types[typ] = true
	log.Warn("webhooks of this type are refused: it is in neither USHER_WEBHOOK_TYPES nor USHER_WEBHOOK_SYNC_TYPES", "type", typ)
}
