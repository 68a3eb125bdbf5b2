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
	if h.gate == nil {
		return
	}
	cfg.Journal = h.journal
	cfg.Gate = func() *admin.GateState { return h.gateState(gate) }
	cfg.Forget = func(tenant string) (int, error) { return h.gate.Forget(tenant), nil }
	if h.inbox != nil {
		cfg.Inbox = &admin.Inbox{
			List: h.inbox.List, Show: h.inbox.Show, Redeliver: h.inbox.Redeliver, Stats: h.inbox.Stats, HeldUp: h.inbox.HeldUp, Err: h.inbox.Err,
			Shared: h.settings.Webhook.nats != nil,
		}
		cfg.Forget = func(tenant string) (int, error) { return h.inbox.Forget(nil, tenant) }
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
			Tries:   m.Receiver(c.Name).Recent(),
		})
	}
	return state
}
