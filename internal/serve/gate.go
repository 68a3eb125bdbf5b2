package serve

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"usher/internal/admin"
	"usher/internal/admin/metrics"
	"usher/internal/guard"
	"usher/internal/text"
	"usher/webhookgate"
)

func (u *Usher) buildGate(m *metrics.Gate) (err error) {
	w := &u.settings.Webhook
	cfg := w.Config
	cfg.Log, cfg.Owed = u.log, u.owed
	for _, r := range w.Receivers.All() {
		r.Tried = m.Receiver(r.Name).Tried
	}
	u.decisions = admin.NewDecisions(w.Inbox == "")
	cfg.Answered = func(o webhookgate.Outcome) {
		m.Received(o.Decision, o.Status, o.Took)
		u.decisions.Add(o)
	}
	logged, _ := lru.New[string, bool](1000) // fails only for a size of 0
	cfg.UnknownType = func(typ string) {
		m.Refused("type")
		typ = text.Clip(typ, 200)
		if known, _ := logged.ContainsOrAdd(typ, true); !known {
			u.log.Warn("webhooks of this type are refused: it is in neither USHER_WEBHOOK_TYPES nor USHER_WEBHOOK_SYNC_TYPES", "type", typ)
		}
	}
	cfg.Refused = func(r *webhookgate.Refusal) bool {
		m.Refused(r.Reason)
		return u.inbox != nil && u.inbox.Refuse(r)
	}
	if w.Unchecked {
		cfg.Hosts = guard.NewHosts(w.Listen, u.settings.Outbound.AllowedHosts, false)
	}
	if w.Inbox != "" {
		cfg.Store = func(w *webhookgate.Webhook) (string, error) { return u.inbox.Store(w) }
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
