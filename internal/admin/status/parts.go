package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"usher/internal/view"
)

// parts describes each part. It goes by the troubles, and by the lines of the ports and the receivers.
func (s *Status) parts(now time.Time) (all []PartState) {
	describe := map[string]func(time.Time) string{
		"outbound":     s.outboundState,
		"gate":         s.gateState,
		"entitlements": s.entitlementsState,
	}
	for _, p := range s.Health.Parts {
		state := PartState{Name: p.Name, On: p.On, State: p.Off}
		if p.On {
			problems := s.Health.Unready(p.Name)
			state.Ready = len(problems) == 0
			state.State = "not ready: " + strings.Join(problems, "; ")
			state.Tone = s.of(p.Name).tone()
			if state.Ready {
				state.State = describe[p.Name](now)
			}
		}
		all = append(all, state)
	}
	return all
}

func (s *Status) outboundState(time.Time) string {
	var ports []string
	for i := range s.Ports {
		ports = append(ports, s.Ports[i].Name+": "+s.Ports[i].State)
	}
	return strings.Join(ports, "; ")
}

func (s *Status) gateState(now time.Time) string {
	if s.Gate == nil { // a test without one
		return ""
	}
	gate, _ := s.line("gate", "", "listens on "+s.Gate.Address, good)
	said := []string{gate}
	for i := range s.Gate.Receivers {
		said = append(said, fmt.Sprintf("receiver %s %s", s.Gate.Receivers[i].Name, s.Gate.Receivers[i].State))
	}
	switch box := s.Inbox; {
	case box == nil:
		said = append(said, "no inbox")
	case box.Unknown:
		said = append(said, "waiting webhooks are not known: the inbox has not been read yet")
	default:
		counts := fmt.Sprintf("%s, %s parked, %s invalid",
			view.Plural(box.Waiting, "waits", "wait"), view.Count(box.Parked), view.Count(box.Invalid))
		if !box.Counted.IsZero() {
			counts += ", counted " + view.Age(box.Counted) + " ago"
		}
		said = append(said, counts)
	}
	return strings.Join(said, "; ")
}

func (s *Status) entitlementsState(time.Time) string {
	e := s.Entitlements
	if e == nil { // a test without one
		return ""
	}
	words := "answers for " + view.Plural(e.Tenants-e.Unknown, "tenant", "tenants")
	if e.Unknown > 0 {
		words += ", not for " + view.Count(e.Unknown)
	}
	words, _ = s.line("entitlements", "", words, good)
	return words
}

// notReady says that a part is not ready, unless a trouble that was found already says why.
func notReady(s *Status, _ time.Time) (all []Trouble) {
	for _, p := range s.Health.Parts {
		problems := s.Health.Unready(p.Name)
		said := slices.ContainsFunc(s.Troubles, func(t Trouble) bool {
			return t.Severity == Critical && slices.ContainsFunc(t.about, func(about Subject) bool { return about.Part == p.Name })
		})
		if p.On && len(problems) > 0 && !said {
			all = append(all, wrong(p.Name+" is not ready: "+strings.Join(problems, "; "), Subject{Part: p.Name}))
		}
	}
	return all
}
