package serve

import (
	"usher/internal/admin"
	"usher/internal/admin/metrics"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/version"
)

// buildAdmin builds the admin port. It shows and does what the parts that are on can.
func (u *Usher) buildAdmin(metrics *metrics.Registry, gate *metrics.Gate) {
	a := &u.settings.Admin
	cfg := admin.Config{
		Hosts:    guard.NewHosts(a.Listen, u.settings.Outbound.AllowedHosts, a.Token != nil),
		Token:    a.Token.Getter(),
		Unready:  u.unready,
		Stopping: u.stopping.Load,
		Parts:    u.parts(),
		Metrics:  metrics.Handler(),
		Changes:  metrics.Changes,
		Version:  version.Number(),
		Log:      u.log,
	}
	if u.outbound != nil {
		cfg.Ports = u.portStates
	}
	if u.rights != nil {
		cfg.Entitlements = u.adminEntitlements()
		cfg.MayUse = u.rights.mayUse
	}
	if u.answers != nil {
		cfg.EntitlementsPort = u.entitlementsPort
	}
	if u.gate != nil {
		cfg.Decisions = u.decisions
		cfg.Gate = func() *status.GateState { return u.gateState(gate) }
		cfg.Platforms = func(tenant string) ([]string, error) { return u.gate.Platforms(tenant), nil }
		cfg.Forget = func(platform, tenant string) (n int, _ error) {
			if u.gate.Forget(platform, tenant) {
				n = 1
			}
			return n, nil
		}
	}
	if u.gate != nil || u.inbox != nil {
		metrics.Paused(func() int { return len(u.inboxFigures().Paused) })
	}
	if i := u.inbox; i != nil { // without a gate, too: every replica can act
		cfg.Inbox = &admin.Inbox{
			List: i.List, Show: i.Show, Redeliver: i.Redeliver, Discard: i.Discard, Pause: i.Pause, Resume: i.Resume, Erase: i.Erase,
			Stats: i.Stats, HeldUp: i.HeldUp, Err: i.Err, Shared: u.settings.Webhook.NATS != nil,
		}
		cfg.Platforms = i.Platforms
		cfg.Forget = func(platform, tenant string) (int, error) { return i.Forget(&platform, tenant) }
	}
	handler := admin.New(cfg)
	u.admin = &listener{variable: "USHER_ADMIN_LISTEN", name: "admin", addr: a.Listen, handler: handler, closing: handler.Close}
}

func (u *Usher) portStates() []status.PortState {
	var states []status.PortState
	for _, p := range u.ports {
		s := status.PortState{
			Name: p.Name, Address: p.listener.url(), Scope: p.Scope, Keyed: p.Key != nil,
			Token: p.Source.State(),
			Calls: p.Calls.Hour(), Tokens: p.Counts.Hour(),
		}
		if p.Owner != p.Name {
			s.Shares = p.Owner
		}
		s.ClientVariable, s.SecretVariable, s.ScopeVariable = u.settings.IdentityVariables(&p.Port.Port)
		states = append(states, s)
	}
	return states
}

func (u *Usher) gateState(m *metrics.Gate) *status.GateState {
	w := &u.settings.Webhook
	state := &status.GateState{Address: u.webhooks.url() + w.Path, Decisions: m.Hour()}
	for _, c := range w.Receivers {
		state.Receivers = append(state.Receivers, status.ReceiverState{
			Name: c.Name, Platforms: c.Platforms,
			Address: c.URL.Scheme + "://" + c.URL.Host, // the rest may hold a secret
			Signed:  c.SignSecret != nil, Tries: m.Receiver(c.Name).Recent(),
		})
	}
	return state
}
