package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"usher/internal/admin"
	"usher/internal/admin/history"
	"usher/internal/admin/metrics"
	"usher/internal/admin/status"
	"usher/internal/catchup"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/outbound"
	"usher/internal/settings"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/internal/version"
	"usher/proxy"
	"usher/webhookgate"
)

// build connects the parts of usher. It opens the inbox, so that an inbox that cannot be opened is an error
// at start-up, but no listener.
func build(s *settings.Settings, log *slog.Logger) (*Usher, error) {
	u := &Usher{settings: s, log: log}
	m := metrics.New(version.Number(), version.Commit())
	if s.OutboundOn() {
		u.buildOutbound(m)
	}
	var gateMetrics *metrics.Gate
	if s.GateOn() {
		gateMetrics = m.Gate(s.Webhook.Receivers)
		if err := u.buildGate(gateMetrics); err != nil {
			return nil, err
		}
	}
	if s.GateOn() || s.EntitlementsOn() {
		if err := u.buildInbox(m, gateMetrics); err != nil {
			return nil, err
		}
	}
	if s.EntitlementsOn() {
		u.buildEntitlements(m)
	}
	u.buildCatchUp(m)
	u.buildAdmin(m, gateMetrics)
	return u, nil
}

func (u *Usher) buildOutbound(m *metrics.Registry) {
	cfg := u.settings.Outbound.Config
	cfg.Log = u.log
	u.outbound = outbound.New(cfg)
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
		u.addListener(p.Variables.Listen, p.Name, p.Listen, u.outbound.Handler(p))
	}
}

func (u *Usher) buildGate(m *metrics.Gate) (err error) {
	w := &u.settings.Webhook
	cfg := w.Config
	cfg.Log = u.log
	cfg.Missed = func(at time.Time) {
		m.Missed()
		if u.inbox != nil {
			u.inbox.Miss(at)
		}
	}
	for _, r := range w.Receivers.All() {
		r.Tried = m.Receiver(r.Name).Tried
	}
	if w.Inbox == "" {
		u.decisions = admin.NewDecisions()
	}
	cfg.Answered = func(o webhookgate.Outcome) {
		m.Received(o.Decision, o.Status, o.Took)
		switch {
		case !o.Question:
		case o.Decision == "forwarded" && o.Status < 500:
			m.QuestionAnswered()
		case o.Decision == "forwarded":
			m.QuestionFailed(o.Decision, fmt.Sprintf("the receiver answered %d", o.Status))
		default:
			m.QuestionFailed(o.Decision, o.Why)
		}
		if u.catchUp != nil && o.Decision != "rejected" {
			u.catchUp.GateAnswered(o.Status)
		}
		if u.decisions != nil {
			u.decisions.Add(o)
		}
	}
	logged, _ := lru.New[string, bool](1000) // fails only for a size of 0
	cfg.UnknownType = func(typ string) {
		m.Invalid("type")
		typ = text.Clip(typ, 200)
		if known, _ := logged.ContainsOrAdd(typ, true); !known {
			u.log.Warn("webhooks of this type are rejected: it is in neither USHER_WEBHOOK_TYPES nor "+
				"USHER_WEBHOOK_SYNC_TYPES", "type", typ)
		}
	}
	cfg.Invalid = func(ctx context.Context, r *webhookgate.Invalid) int64 {
		m.Invalid(r.Reason)
		if u.inbox == nil {
			return 0
		}
		return u.inbox.RecordInvalid(ctx, r)
	}
	if w.Unchecked {
		cfg.Hosts = guard.NewHosts(w.Listen, u.settings.Outbound.AllowedHosts, false)
	}
	if w.Inbox != "" {
		cfg.Store = func(ctx context.Context, w *webhookgate.Webhook) (string, error) { return u.inbox.Store(ctx, w) }
		cfg.PlatformsOf = func(ctx context.Context, tenant string) ([]string, error) { return u.inbox.Platforms(ctx, tenant) }
	}
	u.gate = webhookgate.New(cfg)
	u.gateListener = u.addListener("USHER_WEBHOOK_LISTEN", "webhooks", w.Listen, u.gate)
	if w.TLSCertFile != "" {
		u.gateListener.cert, err = guard.NewCertificate(w.TLSCertFile, w.TLSKeyFile, u.log)
	}
	return err
}

// buildInbox opens the inbox, if there is one. Without a gate usher delivers nothing from it.
func (u *Usher) buildInbox(m *metrics.Registry, gate *metrics.Gate) (err error) {
	w := &u.settings.Webhook
	delivered := m.Inbox(u.inboxStats, w.Receivers)
	if w.Inbox == "" {
		return nil
	}
	u.book = entitlements.NewBook(func(ctx context.Context, tenant string) ([]snapshot.Stored, error) {
		return u.inbox.Snapshots(ctx, tenant)
	}, w.SharedInbox())
	cfg := w.InboxConfig
	cfg.Changed, cfg.Log = u.book.Changed, u.log
	cfg.Delivered = func(receiver string, after time.Duration) {
		delivered(receiver, after)
		if rc := gate.Receiver(receiver); rc != nil {
			rc.Delivered(after)
		}
	}
	cfg.ReadOnly = u.gate == nil
	if u.gate != nil {
		cfg.GateUp = func() bool { return u.running.Load() && !u.stopping.Load() }
	}
	if u.inbox, err = inbox.Open(cfg); err != nil {
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w", err)
	}
	return nil
}

// buildCatchUp builds what reads the service's webhook log.
func (u *Usher) buildCatchUp(m *metrics.Registry) {
	addresses := u.settings.Webhook.CatchUp
	if len(addresses) == 0 || u.inbox == nil {
		return
	}
	u.catchUp = catchup.New(catchup.Config{
		Call: u.outbound.NewCaller(catchup.Scope).Call, Inbox: u.inbox, Addresses: addresses,
		CaughtUp: m.CaughtUp(), Log: u.log,
	})
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
	invalid, _ := u.decisions.Invalid()
	s := inbox.Stats{
		Invalid: invalid, At: time.Now(), Paused: []inbox.Pause{}, Receivers: make(map[string]inbox.Figures),
	}
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
		Changes: func(ctx context.Context, after string, limit int, wait time.Duration) (*snapshot.Changes, error) {
			return u.inbox.Changes(ctx, after, limit, wait)
		},
		Key:   e.Key.Getter(),
		Hosts: guard.NewHosts(e.Listen, u.settings.Outbound.AllowedHosts, e.Key != nil),
		Log:   u.log,
	}
	cfg.Checked, cfg.Answered, u.answers = m.Entitlements(u.inboxStats)
	cfg.Told = m.Changes(func() int { return u.inbox.ChangesWaiting() })
	u.entitlementsListener = u.addListener("USHER_ENTITLEMENTS_LISTEN", "entitlements", e.Listen, entitlements.New(cfg))
}

// buildAdmin builds the admin port for the parts that are on.
func (u *Usher) buildAdmin(metrics *metrics.Registry, gate *metrics.Gate) {
	a := &u.settings.Admin
	cfg := admin.Config{
		Hosts: guard.NewHosts(a.Listen, u.settings.Outbound.AllowedHosts, a.Token != nil),
		Token: a.Token.Getter(), ReadToken: a.ReadToken.Getter(),
		Health: u.health, Metrics: metrics.Handler(), Version: version.Number(), Log: u.log,
	}
	if u.outbound != nil {
		cfg.Ports = u.portStates
	}
	if u.book != nil {
		cfg.Entitlements, cfg.Held = u.book.Lookup, u.book.Held
	}
	if u.entitlementsListener != nil {
		cfg.EntitlementsPort, cfg.Answers = true, u.answers
	}
	if u.gate != nil {
		cfg.Decisions, cfg.Receivers = u.decisions, u.settings.Webhook.Receivers
		cfg.Gate = func() *status.Gate { return u.gateState(gate) }
		cfg.Platforms = func(_ context.Context, tenant string) ([]string, error) {
			return u.gate.Platforms(tenant), nil
		}
	}
	if i := u.inbox; i != nil { // also without a gate: actions work on every replica
		cfg.Inbox, cfg.Platforms = i, i.Platforms
	}
	if u.catchUp != nil {
		cfg.ReadLog = u.catchUp.Reconcile
	}
	for _, p := range u.settings.Parts() {
		if p.On {
			metrics.Ready(p.Name, func() bool { return len(u.health().Unready(p.Name)) == 0 })
		}
	}
	cfg.History = history.Config{
		ReadOnly: u.gate == nil, Host: hostName(), URL: a.NotifyURL.Getter(), Proxy: u.settings.Outbound.Proxy,
		Sent: metrics.Notifications(history.Results[:]...),
	}
	u.admin = admin.New(cfg)
	metrics.Register(status.Metric(u.admin.Troubles))
	if a.Listen != "off" { // without it usher still sends notifications
		u.adminListener = &listener{variable: "USHER_ADMIN_LISTEN", name: "admin", addr: a.Listen, handler: u.admin}
	}
}

func hostName() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}
	return "unknown"
}

// replicaName is what people call this replica: its host, and, where several may run on one, a port of its own.
func (u *Usher) replicaName() string {
	if u.adminListener == nil {
		return hostName()
	}
	_, port, _ := net.SplitHostPort(u.adminListener.socket.Addr().String())
	if _, usual, _ := net.SplitHostPort(settings.Default("USHER_ADMIN_LISTEN")); port == usual || port == "" {
		return hostName()
	}
	return hostName() + ":" + port
}

func (u *Usher) portStates() []status.Port {
	var states []status.Port
	for i, p := range u.outbound.Ports {
		calls, tokens := u.counts[i].calls, u.counts[i].tokens
		s := status.Port{
			Name: p.Name, Address: u.listeners[i].url(), Scope: p.Scope, Key: p.Key != nil, Source: p.Source.State(),
			Calls: calls.Hour(), LastCalls: calls.Last(), Tokens: tokens.Hour(), Revoked: tokens.Revoked(),
		}
		if p.Owner != p.Name {
			s.Shares = p.Owner
		}
		if s.Source.Err != nil {
			s.Advice = u.outbound.Advise(s.Source.Err, p)
		}
		states = append(states, s)
	}
	return states
}

func (u *Usher) gateState(m *metrics.Gate) *status.Gate {
	w := &u.settings.Webhook
	state := &status.Gate{
		Address: u.gateListener.url() + w.Path, Tries: make(map[string]metrics.RecentTries),
		Decisions: m.Hour(), Questions: m.Questions(), FailedChecks: m.FailedChecks(),
	}
	if u.catchUp != nil {
		state.CatchUp = new(status.CatchUp(u.catchUp.State()))
	}
	if u.gateListener.cert != nil {
		state.CertificateEnds = u.gateListener.certificateExpiry()
	}
	for _, r := range w.Receivers.All() {
		recent := m.Receiver(r.Name).Recent()
		recent.Unanswered = r.Unanswered()
		state.Tries[r.Name] = recent
	}
	return state
}

// health returns what decides whether usher is ready.
func (u *Usher) health() *status.Health {
	h := &status.Health{Stopping: u.stopping.Load()}
	for _, p := range u.settings.Parts() {
		h.Parts = append(h.Parts, status.Part(p))
	}
	if u.outbound != nil {
		for _, p := range u.outbound.Ports {
			h.Tokens = append(h.Tokens, status.TokenHealth{Port: p.Name, State: p.Source.State()})
		}
	}
	if u.inbox != nil {
		h.Inbox = status.HealthOf(u.inbox)
	}
	return h
}
