package command

import "usher/internal/admin"

// show lets the admin port see how everything stands.
func (h *house) show(cfg *admin.Config, metrics *admin.Metrics, gate *admin.Gate) {
	cfg.Changes = metrics.Changes
	cfg.Ports = h.portStates
	if h.gate == nil {
		return
	}
	cfg.Journal = h.journal
	cfg.Gate = func() *admin.GateState { return h.gateState(gate) }
	cfg.Forget = func(tenant string) (int, error) { return h.gate.Forget(tenant), nil }
	if h.inbox != nil {
		cfg.Inbox = &admin.Inbox{
			List: h.inbox.List, Show: h.inbox.Show, Redeliver: h.inbox.Redeliver, Stats: h.inbox.Stats, Err: h.inbox.Err,
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
	// Of the receiver's address the host alone: the rest may hold a secret.
	forward := h.settings.Webhook.forward
	return &admin.GateState{
		Address: h.webhooks.url() + h.settings.Webhook.Path, Receiver: forward.Scheme + "://" + forward.Host,
		Decisions: m.Hour(), LastTry: m.LastTry(),
	}
}
