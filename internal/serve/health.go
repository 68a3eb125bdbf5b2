package serve

import (
	"fmt"
	"slices"

	"usher/internal/admin"
)

// unready says what keeps usher from being ready.
func (u *Usher) unready() []string {
	return slices.Concat(u.shutdownProblems(), u.inboxProblems(), u.entitlementsProblems(), u.tokenProblems())
}

// parts returns what /readyz/NAME reports on. Each part has a readiness of its own, so that
// a token endpoint that refuses does not take a gate out of its load balancer.
func (u *Usher) parts() []admin.Part {
	o, g, e := u.settings.Parts()
	outbound := admin.Part{Name: o.Name, Off: o.Off}
	if u.outbound != nil {
		outbound.Unready = func() []string { return append(u.shutdownProblems(), u.tokenProblems()...) }
	}
	gate := admin.Part{Name: g.Name, Off: g.Off}
	if u.gate != nil {
		gate.Unready = func() []string { return append(u.shutdownProblems(), u.inboxProblems()...) }
	}
	answers := admin.Part{Name: e.Name, Off: e.Off}
	if u.answers != nil {
		// usher answers from memory also while it cannot reach the inbox's servers.
		answers.Unready = func() []string { return append(u.shutdownProblems(), u.entitlementsProblems()...) }
	}
	return []admin.Part{outbound, gate, answers}
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
