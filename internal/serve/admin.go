package serve

import (
	"fmt"

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
		Hosts:     guard.NewHosts(a.Listen, u.settings.Outbound.AllowedHosts, a.Token != nil),
		Token:     a.Token.Getter(),
		ReadToken: a.ReadToken.Getter(),
		Unready:   func() []string { return u.unready("gate", "entitlements", "outbound") },
		Stopping:  u.stopping.Load,
		Parts:     u.parts(),
		Metrics:   metrics.Handler(),
		Changes:   metrics.Changes,
		Version:   version.Number(),
		Log:       u.log,
	}
	if u.outbound != nil {
		cfg.Ports = u.portStates
	}
	if u.book != nil {
		cfg.Entitlements = u.book.Lookup
	}
	if u.answers != nil {
		cfg.EntitlementsPort = u.entitlementsPort
	}
	if u.gate != nil {
		cfg.Decisions, cfg.Receivers = u.decisions, u.settings.Webhook.Receivers
		cfg.Gate = func() *status.Gate { return u.gateState(gate) }
		cfg.Platforms = func(tenant string) ([]string, error) { return u.gate.Platforms(tenant), nil }
		cfg.Forget = func(platform, tenant string) (n int, _ error) {
			if u.gate.Forget(platform, tenant) {
				n = 1
			}
			return n, nil
		}
	}
	if i := u.inbox; i != nil { // without a gate, too: every replica can act
		cfg.Inbox = i
		cfg.Platforms = i.Platforms
		cfg.Forget = func(platform, tenant string) (int, error) { return i.Forget(&platform, tenant) }
	}
	handler := admin.New(cfg)
	u.admin = &listener{variable: "USHER_ADMIN_LISTEN", name: "admin", addr: a.Listen, handler: handler, closing: handler.Close}
}

func (u *Usher) portStates() []status.Port {
	var states []status.Port
	for i, p := range u.outbound.Ports {
		s := status.Port{
			Name: p.Name, Address: u.listeners[i].url(), Scope: p.Scope, Key: p.Key != nil,
			Source: p.Source.State(),
			Calls:  p.Calls.Hour(), Tokens: p.Counts.Hour(),
		}
		if p.Owner != p.Name {
			s.Shares = p.Owner
		}
		s.ClientVariable, s.SecretVariable, s.ScopeVariable = u.settings.IdentityVariables(&p.Port)
		states = append(states, s)
	}
	return states
}

func (u *Usher) gateState(m *metrics.Gate) *status.Gate {
	w := &u.settings.Webhook
	state := &status.Gate{Address: u.webhooks.url() + w.Path, Tries: make(map[string]metrics.RecentTries), Decisions: m.Hour()}
	for _, r := range w.Receivers.All() {
		state.Tries[r.Name] = m.Receiver(r.Name).Recent()
	}
	if u.inbox == nil {
		state.Refused, state.RefusedDetails.Tenants, state.RefusedDetails.Reason = u.refusals.state()
	}
	return state
}

// parts returns what /readyz/NAME reports on. Each part has a readiness of its own, so that
// a token endpoint that refuses does not take a gate out of its load balancer.
func (u *Usher) parts() (parts []admin.Part) {
	for _, p := range u.settings.Parts() {
		part := admin.Part{Name: p.Name, Off: p.Off}
		if p.On {
			part.Unready = func() []string { return u.unready(p.Name) }
		}
		parts = append(parts, part)
	}
	return parts
}

// unready says what keeps parts of usher from being ready.
func (u *Usher) unready(parts ...string) (problems []string) {
	if u.stopping.Load() {
		problems = append(problems, "shutting down")
	}
	for _, part := range parts {
		switch {
		case part == "gate" && u.inbox != nil:
			if err := u.inbox.Err(); err != nil {
				problems = append(problems, err.Error())
			}
		case part == "entitlements" && u.answers != nil:
			// usher answers from memory also while it cannot reach the inbox's servers.
			if !u.inbox.Ready() {
				problems = append(problems, "the inbox has not been read yet, so usher does not know yet what tenants may use")
			}
		case part == "outbound" && u.outbound != nil:
			// After the first token an outage of the billing service does not make usher unready: it
			// must not take the customer's pod down.
			for _, p := range u.outbound.Ports {
				if state := p.Source.State(); !state.Had {
					problem := fmt.Sprintf("port %s has had no token yet", p.Name)
					if state.Err != nil {
						problem += ": " + state.Err.Error()
					}
					problems = append(problems, problem)
				}
			}
		}
	}
	return problems
}
