package serve

import (
	"fmt"

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
		Unready:   func() []string { return u.unready("gate", "entitlements", "outbound") },
		Parts:     u.parts(),
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
		cfg.Forget = func(platform, tenant string, _ *inbox.Action) (n int, _ error) {
			if u.gate.Forget(platform, tenant) {
				n = 1
			}
			return n, nil
		}
	}
	if i := u.inbox; i != nil { // also without a gate: actions work on every replica
		cfg.Inbox = i
		cfg.Platforms = i.Platforms
		cfg.Forget = func(platform, tenant string, by *inbox.Action) (int, error) { return i.Forget(&platform, tenant, by) }
	}
	for _, p := range cfg.Parts {
		if p.Unready != nil {
			metrics.Ready(p.Name, func() bool { return len(p.Unready()) == 0 })
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
			Calls:  u.counts[i].calls.Hour(), Tokens: u.counts[i].tokens.Hour(),
		}
		if p.Owner != p.Name {
			s.Shares = p.Owner
		}
		if s.Source.Err != nil {
			s.Advice = u.outbound.Advise(s.Source.Err, &p.Port)
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

// parts returns the parts for /readyz/NAME. Each has a readiness of its own, so that a token endpoint that
// refuses the client does not take a gate out of its load balancer.
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

// unready returns why these parts of usher are not ready; none if they are.
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
		case part == "entitlements" && u.entitlementsListener != nil:
			// Later outages of the database do not count: usher answers from memory meanwhile.
			if !u.inbox.Ready() {
				problems = append(problems, "the inbox has not been read yet, so usher does not know yet what tenants may use")
			}
		case part == "outbound" && u.outbound != nil:
			// Only the first token counts: a later outage of the billing service must not take the
			// customer's pod down.
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
