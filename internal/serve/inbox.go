package serve

import (
	"context"
	"strings"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/settings"
	"usher/internal/snapshot"
	"usher/internal/text"
)

// buildInbox opens the inbox, if there is one. Without a gate usher delivers nothing from it.
func (u *Usher) buildInbox(m *metrics.Registry) (err error) {
	w := &u.settings.Webhook
	delivered := m.Inbox(u.inboxStats, w.Receivers)
	if w.Inbox == "" {
		return nil
	}
	u.book = entitlements.NewBook(func(ctx context.Context, tenants []string) ([]snapshot.Stored, error) {
		return u.inbox.Snapshots(ctx, tenants)
	}, w.SharedInbox())
	cfg := w.InboxConfig
	cfg.Delivered, cfg.Changed, cfg.Log = delivered, u.book.Changed, u.log
	if u.gate != nil {
		cfg.Owed, cfg.GateUp = u.owed, func() bool { return u.running.Load() && !u.stopping.Load() }
	}
	if u.inbox, err = inbox.Open(cfg); err != nil {
		return settings.InboxError(err)
	}
	return nil
}

// startCourier starts to deliver the webhooks in the inbox. stop starts no more deliveries, waits for those
// in progress until its context ends, then cancels them and returns an error.
func (u *Usher) startCourier() (stop func(context.Context) error) {
	if u.inbox == nil {
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	hard, cut := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.inbox.Run(ctx, hard)
	}()
	return func(grace context.Context) error {
		defer cut()
		defer context.AfterFunc(grace, cut)()
		cancel()
		<-ended
		return hard.Err()
	}
}

// inboxStats returns the figures of the inbox. Without an inbox they are zeros, so that the same dashboards
// work. Without a gate usher does not know the receivers: everything would seem to wait for none.
func (u *Usher) inboxStats() inbox.Stats {
	if u.inbox != nil {
		s := u.inbox.Stats()
		if u.gate == nil {
			s.Receivers = nil
		}
		return s
	}
	refused, _ := u.decisions.Refused()
	s := inbox.Stats{Refused: refused, Owed: inbox.OwedInMemory(u.owed), At: time.Now(), Paused: []inbox.Pause{}, Receivers: make(map[string]inbox.Figures)}
	for _, c := range u.settings.Webhook.Receivers.All() {
		s.Receivers[c.Name] = inbox.Figures{}
	}
	return s
}

// buildEntitlements builds the port that answers what a tenant may use.
func (u *Usher) buildEntitlements(m *metrics.Registry) {
	e := &u.settings.Entitlements
	cfg := entitlements.Config{
		Lookup: u.book.Lookup,
		Key:    e.Key.Getter(),
		Hosts:  guard.NewHosts(e.Listen, u.settings.Outbound.AllowedHosts, e.Key != nil),
		Log:    u.log,
	}
	cfg.Checked, cfg.Answered = m.Entitlements(u.inboxStats)
	u.entitlementsListener = &listener{variable: "USHER_ENTITLEMENTS_LISTEN", name: "entitlements", addr: e.Listen, handler: entitlements.New(cfg)}
	u.listeners = append(u.listeners, u.entitlementsListener)
}

// curlEntitlements returns a curl command with its options, without the key itself, and the base URL for
// calls of the entitlements port.
func (u *Usher) curlEntitlements() (curl, base string) {
	curl, base = "curl", u.entitlementsListener.url()
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		curl, base = "curl --unix-socket "+text.Quote(path), "http://localhost"
	}
	if u.settings.Entitlements.Key != nil {
		curl += ` -H "X-Usher-Key: $USHER_ENTITLEMENTS_KEY"`
	}
	return curl, base
}
