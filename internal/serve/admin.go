package serve

import (
	"usher/internal/admin"
	"usher/internal/admin/metrics"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/version"
)

// buildAdmin builds the admin port for the parts that are on.
func (u *Usher) buildAdmin(metrics *metrics.Registry, gate *metrics.Gate) {
	a := &u.settings.Admin
	cfg := admin.Config{
		Hosts:     guard.NewHosts(a.Listen, u.settings.Outbound.AllowedHosts, a.Token != nil),
		Token:     a.Token.Getter(),
		ReadToken: a.ReadToken.Getter(),
		Health:    u.health,
		Metrics:   metrics.Handler(),
		Version:   version.Number(),
		Log:       u.log,
	}
	if u.outbound != nil {
		cfg.Ports = u.portStates
	}
	if u.book != nil {
		cfg.Entitlements = u.book.Lookup
	}
	if u.entitlementsListener != nil {
		cfg.EntitlementsPort = u.curlEntitlements
	}
	if u.gate != nil {
		cfg.Decisions, cfg.Receivers = u.decisions, u.settings.Webhook.Receivers
		cfg.Gate = func() *status.Gate { return u.gateState(gate) }
		cfg.Platforms = func(tenant string) ([]string, error) { return u.gate.Platforms(tenant), nil }
		cfg.Owed = u.owed
		cfg.Forget = func(platform, tenant string, _ *inbox.Action) (n int, _ error) {
			if u.gate.Forget(platform, tenant) {
				n = 1
			}
			return n, nil
		}
	}
	if i := u.inbox; i != nil { // also without a gate: actions work on every replica
		cfg.Inbox, cfg.Owed = i, nil
		cfg.Platforms = i.Platforms
		cfg.Forget = func(platform, tenant string, by *inbox.Action) (int, error) { return i.Forget(&platform, tenant, by) }
	}
	for _, p := range u.settings.Parts() {
		if p.On {
			metrics.Ready(p.Name, func() bool { return len(u.health().Unready(p.Name)) == 0 })
		}
	}
	u.adminListener = &listener{variable: "USHER_ADMIN_LISTEN", name: "admin", addr: a.Listen, handler: admin.New(cfg)}
}

func (u *Usher) portStates() []status.Port {
	var states []status.Port
	for i, p := range u.outbound.Ports {
		s := status.Port{
			Name: p.Name, Address: u.listeners[i].url(), Scope: p.Scope, Key: p.Key != nil,
			Source: p.Source.State(),
			Calls:  u.counts[i].calls.Hour(), Tokens: u.counts[i].tokens.Hour(), LastFailure: u.counts[i].calls.LastFailure(),
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
	state := &status.Gate{Address: u.gateListener.url() + w.Path, Tries: make(map[string]metrics.RecentTries), Decisions: m.Hour()}
	if u.gateListener.tls != nil {
		state.CertificateEnds = u.gateListener.certificateExpiry()
	}
	for _, r := range w.Receivers.All() {
		state.Tries[r.Name] = m.Receiver(r.Name).Recent()
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
