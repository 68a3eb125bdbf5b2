package command

import (
	"context"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/admin/decisions"
	"usher/internal/inbox"
	"usher/internal/inbox/courier"
	"usher/webhookgate"
)

// inboxFigures are zero without an inbox: dashboards need not care whether there is one.
func (h *house) inboxFigures() inbox.Stats {
	if h.inbox != nil {
		return h.inbox.Stats()
	}
	s := inbox.Stats{Receivers: make(map[string]courier.ReceiverStats)}
	for _, c := range h.settings.Webhook.receivers {
		s.Receivers[c.Name] = courier.ReceiverStats{}
	}
	return s
}

// buildGate puts the webhook gate together.
func (h *house) buildGate(m *admin.Gate) error {
	w := &h.settings.Webhook
	main, further := w.gateReceivers()
	cfg := webhookgate.Config{
		Path:           w.Path,
		HMACHeader:     w.HMACHeader,
		HMACAlgorithm:  w.HMACAlgorithm,
		HMACStandard:   w.HMACScheme == "standard",
		AllowCIDRs:     w.allow,
		TrustedProxies: w.trusted,
		Types:          w.Types,
		SyncTypes:      w.SyncTypes,
		Schema:         w.schema,
		MaxBody:        int64(w.MaxBody),
		DedupSize:      w.DedupSize,
		DedupWindow:    w.DedupWindow,
		Receivers:      further,
		Timeout:        w.Timeout,
		Attempts:       w.Attempts,
		MaxInflight:    w.MaxInflight,
		Log:            h.log,
		Received:       m.Received,
		Attempted:      m.Attempted,
	}
	if w.Token != nil {
		cfg.Tokens = func() []string { return splitTokens(w.Token.Get()) }
	}
	if w.HMACSecret != nil {
		cfg.HMACSecret = w.HMACSecret.Get
	}
	if main != nil {
		cfg.ForwardURL, cfg.SignSecret = main.forward, getter(main.SignSecret)
	}
	for _, c := range w.receivers {
		m.Receiver(c.Name) // there with zeros from the start
	}
	h.decisions = decisions.New(w.Inbox == "")
	cfg.Answered = h.decisions.Add
	if w.Inbox != "" {
		cfg.Keep = func(w *webhookgate.Webhook) (string, error) { return h.inbox.Keep(w) }
		cfg.KeepUnclaimed = w.keeps
	}
	var err error
	if h.gate, err = webhookgate.New(cfg); err != nil {
		return err
	}
	d := &door{variable: "USHER_WEBHOOK_LISTEN", name: "webhooks", addr: w.Listen, handler: h.gate}
	if w.TLSCertFile != "" {
		if d.tls, err = webhookgate.TLSConfig(w.TLSCertFile, w.TLSKeyFile, w.TLSClientCA, h.log); err != nil {
			return err
		}
	}
	h.webhooks = d
	h.doors = append(h.doors, d)
	return nil
}

// certificateEnds is when the gate's own TLS certificate ends, as the files have it now: one
// that was renewed counts from the next scrape on, also before the next sender comes.
func (d *door) certificateEnds() time.Time {
	current, err := d.tls.GetConfigForClient(nil)
	if err != nil || len(current.Certificates) == 0 {
		return time.Time{} // webhookgate.TLSConfig has always one
	}
	return current.Certificates[0].Leaf.NotAfter
}

// buildInbox opens the inbox, if there is one. Without a gate it is only read.
func (h *house) buildInbox(m *admin.InboxFigures) (err error) {
	w := &h.settings.Webhook
	for _, c := range w.receivers {
		m.Receiver(c.Name)
	}
	if w.Inbox == "" {
		return nil
	}
	h.rights = newRights()
	cfg := inbox.Config{
		URL:          w.Inbox,
		NATS:         w.nats,
		OnSnapshot:   h.rights.onSnapshot,
		OnErase:      h.rights.onErase,
		Attempts:     w.InboxAttempts,
		MaxAge:       w.InboxMaxAge,
		KeepLatest:   w.InboxKeep == "latest",
		DedupSize:    w.DedupSize,
		DedupWindow:  w.DedupWindow,
		MaxBytes:     int64(w.InboxMaxBytes),
		Delivered:    m.Delivered,
		LeaseChanged: m.LeaseChanged,
		Log:          h.log,
	}
	if h.gate != nil {
		cfg.Receivers, cfg.Route, cfg.KeepUnclaimed = h.inboxReceivers(), h.gate.ReceiverOf, w.keeps
	}
	if h.inbox, err = inbox.Open(cfg); err != nil {
		return adviseInbox(err)
	}
	h.rights.inbox = h.inbox
	return nil
}

// inboxReceivers are the receivers as the inbox knows them.
func (h *house) inboxReceivers() (all []inbox.Receiver) {
	for _, c := range h.settings.Webhook.receivers {
		all = append(all, inbox.Receiver{Name: c.Name, Try: h.gate.Try, Concurrency: c.Concurrency})
	}
	return all
}

// startCourier begins to deliver what is in the inbox. What it returns ends that:
// between deliveries, or in the middle of them once its context has ended.
func (h *house) startCourier() (stop func(context.Context) error) {
	if h.inbox == nil {
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	hard, cut := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.inbox.Run(ctx, hard)
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
