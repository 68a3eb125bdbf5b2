package command

import "usher/internal/admin"

// show lets the admin port see how everything stands.
func (h *house) show(cfg *admin.Config, metrics *admin.Metrics, gate *admin.Gate) {
	cfg.Changes = metrics.Changes
	if h.outbound != nil {
		cfg.Ports = h.portStates
	}
	if h.rights != nil {
		cfg.Entitlements = h.adminEntitlements()
		cfg.MayUse = h.rights.mayUse
	}
	if h.answers != nil {
		cfg.EntitlementsPort = h.entitlementsPort
	}
	if h.gate != nil {
		cfg.Decisions = h.decisions
		cfg.Gate = func() *admin.GateState { return h.gateState(gate) }
		cfg.Platforms = func(tenant string) ([]string, error) { return h.gate.Platforms(tenant), nil }
		cfg.Forget = func(platform, tenant string) (n int, _ error) {
			if h.gate.Forget(platform, tenant) {
				n = 1
			}
			return n, nil
		}
	}
	if h.gate != nil || h.inbox != nil {
		metrics.Paused(func() int { return len(h.inboxFigures().Paused) })
	}
	if i := h.inbox; i != nil { // without a gate, too: whichever replica is asked can act
		cfg.Inbox = &admin.Inbox{
			List: i.List, Show: i.Show, Redeliver: i.Redeliver, Discard: i.Discard, Pause: i.Pause, Resume: i.Resume, Erase: i.Erase,
			Stats: i.Stats, HeldUp: i.HeldUp, Err: i.Err, Shared: h.settings.Webhook.nats != nil,
		}
		cfg.Platforms = i.Platforms
		cfg.Forget = func(platform, tenant string) (int, error) { return i.Forget(&platform, tenant) }
	}
}

func (h *house) portStates() []admin.PortState {
	var states []admin.PortState
	for i, p := range h.settings.Ports {
		figures := h.outbound.figures[p.Name]
		s := admin.PortState{
			Name: p.Name, Address: h.doors[i].url(), Scope: p.Scope, Keyed: p.Key != nil,
			Token: h.outbound.of[p.Name].State(),
			Calls: figures.calls.Hour(), Tokens: figures.identity.Hour(),
		}
		if figures.owner != p.Name {
			s.Shares = figures.owner
		}
		s.ClientVariable, s.SecretVariable, s.ScopeVariable = h.settings.namesOf(p)
		states = append(states, s)
	}
	return states
}

func (h *house) gateState(m *admin.Gate) *admin.GateState {
	w := &h.settings.Webhook
	state := &admin.GateState{Address: h.webhooks.url() + w.Path, Decisions: m.Hour()}
	for _, c := range w.receivers {
		state.Receivers = append(state.Receivers, admin.ReceiverState{
			Name: c.Name, Platforms: c.Platforms,
			Address: c.forward.Scheme + "://" + c.forward.Host, // the rest may hold a secret
			Signed:  c.SignSecret != nil, Tries: m.Receiver(c.Name).Recent(),
		})
	}
	return state
}
