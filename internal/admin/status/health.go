package status

import (
	"fmt"
	"slices"

	"usher/internal/inbox"
	"usher/tokens"
)

// Health is what decides whether usher is ready. To collect it asks nobody, so that a probe gets its answer
// also while a database hangs.
type Health struct {
	Stopping bool          // usher is shutting down
	Parts    []Part        // all, in the order in which people see them
	Tokens   []TokenHealth // of the local ports
	Inbox    *InboxHealth  // nil if there is none
}

// Part is a part of usher: outbound, the gate, or entitlements. Each has a readiness of its own, so that a
// token endpoint that rejects the client does not take a gate out of its load balancer.
type Part struct {
	Name string // as in /readyz/NAME
	On   bool
	Off  string // if it is off: which setting switches it on, in words
}

// TokenHealth is the state of a local port's token.
type TokenHealth struct {
	Port string
	tokens.State
}

// InboxHealth is the state of the inbox.
type InboxHealth struct {
	inbox.Health
	Opened bool // it has been read and written at least once
	Shared bool // other replicas may use it, too
}

// HealthOf returns the state of an inbox.
func HealthOf(i *inbox.Inbox) *InboxHealth {
	return &InboxHealth{Health: i.Health(), Opened: i.Ready(), Shared: i.Shared()}
}

// on says whether a part is on.
func (h *Health) on(part string) bool {
	return slices.ContainsFunc(h.Parts, func(p Part) bool { return p.Name == part && p.On })
}

func (h *Health) inboxErr() error {
	if h.Inbox == nil {
		return nil
	}
	return h.Inbox.Err
}

// Unready returns why usher is not ready; none if it is. With names it is about these parts only.
func (h *Health) Unready(names ...string) (problems []string) {
	if h.Stopping {
		problems = append(problems, "shutting down")
	}
	for _, p := range h.Parts {
		if p.On && (len(names) == 0 || names[0] == p.Name) {
			problems = append(problems, h.unready(p.Name)...)
		}
	}
	return problems
}

func (h *Health) unready(part string) (problems []string) {
	switch {
	case part == "gate" && h.Inbox != nil && h.Inbox.Unready:
		problems = append(problems, h.Inbox.Err.Error())
	case part == "entitlements" && !h.Inbox.Opened:
		// Later outages of the database do not count: usher answers from memory meanwhile.
		problems = append(problems, "the inbox has not been read yet, so usher does not know yet what tenants may use")
	case part == "outbound":
		// Only the first token counts: a later outage of the billing service must not take the customer's pod down.
		for _, t := range h.Tokens {
			if !t.Had {
				problem := fmt.Sprintf("port %s has had no token yet", t.Port)
				if t.Err != nil {
					problem += ": " + t.Err.Error()
				}
				problems = append(problems, problem)
			}
		}
	}
	return problems
}
