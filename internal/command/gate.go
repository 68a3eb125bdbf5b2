package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/decisions"
	"usher/internal/admin/metrics"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/inbox/courier"
	"usher/internal/settings"
	"usher/webhookgate"
)

// inboxFigures returns zeros without an inbox: dashboards work with and without one.
func (u *usher) inboxFigures() inbox.Stats {
	if u.inbox != nil {
		return u.inbox.Stats()
	}
	s := inbox.Stats{Receivers: make(map[string]courier.ReceiverStats)}
	for _, c := range u.settings.Webhook.Receivers {
		s.Receivers[c.Name] = courier.ReceiverStats{}
	}
	return s
}

// buildGate builds the webhook gate.
func (u *usher) buildGate(m *metrics.Gate) error {
	w := &u.settings.Webhook
	main, further := gateReceivers(w)
	cfg := webhookgate.Config{
		Path:           w.Path,
		HMACSecret:     w.HMACSecret.Getter(),
		HMACHeader:     w.HMACHeader,
		HMACAlgorithm:  w.HMACAlgorithm,
		HMACStandard:   w.HMACScheme == "standard",
		AllowCIDRs:     w.Allow,
		TrustedProxies: w.Trusted,
		Types:          w.Types,
		SyncTypes:      w.SyncTypes,
		Schema:         w.Schema,
		MaxBody:        int64(w.MaxBody),
		DedupSize:      w.DedupSize,
		DedupWindow:    w.DedupWindow,
		Receivers:      further,
		Timeout:        w.Timeout,
		Attempts:       w.Attempts,
		MaxInflight:    w.MaxInflight,
		Log:            u.log,
		Attempted:      m.Attempted,
	}
	if w.Token != nil {
		cfg.Tokens = func() []string { return splitTokens(w.Token.Get()) }
	}
	if main != nil {
		cfg.ForwardURL, cfg.SignSecret = main.URL, main.SignSecret.Getter()
	}
	for _, c := range w.Receivers {
		m.Receiver(c.Name) // there with zeros from the start
	}
	u.decisions = decisions.New(w.Inbox == "")
	cfg.Answered = func(o webhookgate.Outcome) {
		m.Received(o.Decision, o.Took)
		u.decisions.Add(o)
	}
	if w.Inbox != "" {
		cfg.Keep = func(w *webhookgate.Webhook) (string, error) { return u.inbox.Keep(w) }
		cfg.KeepUnclaimed = w.KeepUnclaimed
	}
	var err error
	if u.gate, err = webhookgate.New(cfg); err != nil {
		return err
	}
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

// gateReceivers returns the receivers in the gate's terms: the main one, which may be nil,
// and the further ones.
func gateReceivers(w *settings.Webhook) (main *settings.Receiver, further []webhookgate.Receiver) {
	for i := range w.Receivers {
		c := &w.Receivers[i]
		if len(c.Platforms) == 0 {
			main = c
			continue
		}
		further = append(further, webhookgate.Receiver{
			Name: c.Name, Platforms: slices.Clone(c.Platforms), URL: c.URL, SignSecret: c.SignSecret.Getter(), Timeout: c.Timeout,
		})
	}
	return main, further
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

// buildInbox opens the inbox, if there is one. Without a gate usher only reads it.
func (u *usher) buildInbox(m *metrics.Inbox) (err error) {
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
func (u *usher) inboxReceivers() (all []inbox.Receiver) {
	for _, c := range u.settings.Webhook.Receivers {
		all = append(all, inbox.Receiver{Name: c.Name, Try: u.gate.Try, Concurrency: c.Concurrency})
	}
	return all
}

// startCourier starts to deliver what is in the inbox. stop lets the deliveries under way
// finish, until its context ends; then it cancels them.
func (u *usher) startCourier() (stop func(context.Context) error) {
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

func splitTokens(s string) []string {
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
