package serve

import (
	"context"

	"usher/internal/admin/metrics"
	"usher/internal/entitlements"
	"usher/internal/inbox"
	"usher/internal/inbox/courier"
	"usher/internal/settings"
)

// buildInbox opens the inbox, if there is one. Without a gate usher only reads it.
func (u *Usher) buildInbox(m *metrics.Inbox) (err error) {
	w := &u.settings.Webhook
	for _, c := range w.Receivers {
		m.Receiver(c.Name)
	}
	if w.Inbox == "" {
		return nil
	}
	u.rights = newRights(u.settings.EntitlementsOn())
	cfg := inbox.Config{
		URL:          w.Inbox,
		NATS:         w.NATS,
		OnSnapshot:   u.rights.onSnapshot,
		OnErase:      u.rights.onErase,
		Essence:      entitlements.Essence,
		OnLost:       u.rights.index.Reset,
		Attempts:     w.InboxAttempts,
		MaxAge:       w.InboxMaxAge,
		KeepLatest:   w.InboxKeep == "latest",
		DedupSize:    w.DedupSize,
		DedupWindow:  w.DedupWindow,
		MaxBytes:     int64(w.InboxMaxBytes),
		Delivered:    m.Delivered,
		LeaseChanged: m.LeaseChanged,
		Log:          u.log,
	}
	if u.gate != nil {
		cfg.Receivers, cfg.Route, cfg.KeepUnclaimed = u.inboxReceivers(), u.gate.ReceiverOf, w.KeepUnclaimed
	}
	if u.inbox, err = inbox.Open(cfg); err != nil {
		return settings.InboxError(err)
	}
	u.rights.inbox = u.inbox
	return nil
}

// inboxReceivers returns the receivers in the inbox's terms.
func (u *Usher) inboxReceivers() (all []inbox.Receiver) {
	for _, c := range u.settings.Webhook.Receivers {
		all = append(all, inbox.Receiver{Name: c.Name, Try: u.gate.Try, Concurrency: c.Concurrency})
	}
	return all
}

// startCourier starts to deliver what is in the inbox. stop lets the deliveries under way
// finish, until its context ends; then it cancels them.
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
		cancel()
		select {
		case <-ended:
			return nil
		case <-grace.Done():
		}
		cut()
		<-ended
		return grace.Err()
	}
}

// inboxFigures returns zeros without an inbox: dashboards work with and without one.
func (u *Usher) inboxFigures() inbox.Stats {
	if u.inbox != nil {
		return u.inbox.Stats()
	}
	s := inbox.Stats{Receivers: make(map[string]courier.ReceiverStats)}
	for _, c := range u.settings.Webhook.Receivers {
		s.Receivers[c.Name] = courier.ReceiverStats{}
	}
	return s
}

// Waiting is how many webhooks are still to be delivered.
func (u *Usher) Waiting() int { return u.inboxFigures().Pending }
