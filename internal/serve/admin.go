package serve

import (
	"fmt"
	"slices"

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
		Unready: func() []string {
			return slices.Concat(u.shutdownProblems(), u.inboxProblems(), u.entitlementsProblems(), u.tokenProblems())
		},
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
	if u.book != nil {
		cfg.Entitlements = u.book.Lookup
	}
	if u.answers != nil {
		cfg.EntitlementsPort = u.entitlementsPort
	}
	if u.gate != nil {
		cfg.Decisions = u.decisions
		cfg.Gate = func() *status.Gate { return u.gateState(gate) }
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
	state := &status.Gate{Address: u.webhooks.url() + w.Path, Set: w.Receivers, Tries: make(map[string]metrics.RecentTries), Decisions: m.Hour()}
	for _, r := range w.Receivers.All() {
		state.Tries[r.Name] = m.Receiver(r.Name).Recent()
	}
	if u.inbox == nil {
		state.Refused = u.refusals.count()
		state.RefusedOf, state.RefusedWhy = u.refusals.tenants()
	}
	return state
}

// parts returns what /readyz/NAME reports on. Each part has a readiness of its own, so that
// a token endpoint that refuses does not take a gate out of its load balancer.
func (u *Usher) parts() []admin.Part {
	// usher answers from memory also while it cannot reach the inbox's servers.
	problems := [3]func() []string{u.tokenProblems, u.inboxProblems, u.entitlementsProblems}
	var parts []admin.Part
	for i, p := range u.settings.Parts() {
		part := admin.Part{Name: p.Name, Off: p.Off}
		if p.On {
			part.Unready = func() []string { return append(u.shutdownProblems(), problems[i]()...) }
		}
		parts = append(parts, part)
	}
	return parts
}

func (u *Usher) shutdownProblems() []string {
	if !u.stopping.Load() {
		return nil
	}
	return []string{"shutting down"}
}

func (u *Usher) inboxProblems() []string {
	if u.inbox == nil {
		return nil
	}
	if err := u.inbox.Err(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// tokenProblems says which ports never had a token. After the first one an outage of the
// billing service does not make usher unready: it must not take the customer's pod down.
func (u *Usher) tokenProblems() []string {
	if u.outbound == nil {
		return nil
	}
	var problems []string
	for _, p := range u.outbound.Ports {
		state := p.Source.State()
		switch {
		case state.Had:
		case state.Err != nil:
			problems = append(problems, fmt.Sprintf("port %s has had no token yet: %v", p.Name, state.Err))
		default:
			problems = append(problems, fmt.Sprintf("port %s has had no token yet", p.Name))
		}
	}
	return problems
}
