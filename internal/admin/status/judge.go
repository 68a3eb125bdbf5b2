package status

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Judge describes the state of each part in words, and lists the troubles.
func (s *Status) Judge(now time.Time) {
	s.Ports = append([]Port{}, s.Ports...) // [] and not null
	for i := range s.Ports {
		s.Ports[i].judge(now)
	}
	if s.Gate != nil {
		s.Gate.judge(s.Inbox)
		s.CaughtUp = s.Gate.CatchUp.caughtUp(now)
	}
	if s.Inbox != nil {
		s.Starting = s.Inbox.Unknown || s.Inbox.stats.Starting
	}
	s.Ready = len(s.Health.Unready()) == 0
	s.judge(now)
	for i := range s.Ports {
		p := &s.Ports[i]
		p.State, p.Tone = s.line("outbound", p.Name, tokenWords(p.Source, now), good)
	}
	if s.Gate != nil {
		for i := range s.Gate.Receivers {
			r := &s.Gate.Receivers[i]
			words, tone := r.quiet()
			r.State, r.Tone = s.line("gate", r.Name, words, tone)
		}
	}
	s.Parts = s.parts(now)
}

// judge finds all troubles, the worst first.
func (s *Status) judge(now time.Time) {
	s.Troubles = []Trouble{} // [] and not null
	for _, k := range Kinds {
		for _, t := range k.find(s, now) {
			t.Kind, t.own = k.Name, k.own
			t.Severity, t.Means, t.Do = cmp.Or(t.Severity, k.Severity), cmp.Or(t.Means, k.Means), cmp.Or(t.Do, k.Do)
			s.Troubles = append(s.Troubles, t)
		}
	}
	for i := range s.Elsewhere {
		if t := elsewhere(&s.Elsewhere[i]); !slices.ContainsFunc(s.Troubles, func(o Trouble) bool { return o.key() == s.Elsewhere[i].About }) {
			s.Troubles = append(s.Troubles, t)
		}
	}
	slices.SortStableFunc(s.Troubles, func(a, b Trouble) int { return strings.Compare(a.Severity, b.Severity) })
}

// Troubles returns those of the inbox, if it cannot be used now. To collect them it asks nobody.
func (h *Health) Troubles() []Trouble {
	s := &Status{Health: &Health{Inbox: h.Inbox}}
	s.judge(time.Time{})
	return s.Troubles
}

// judge derives Receivers. box is nil without an inbox.
func (g *Gate) judge(box *Inbox) {
	g.Receivers = []Receiver{} // An empty list is written as [], not as null.
	for _, r := range g.Set.All() {
		g.Receivers = append(g.Receivers, newReceiver(r, g.Tries[r.Name], box))
	}
}
