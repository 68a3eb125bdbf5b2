// Package status knows how each part of usher is, what that means for customers, and what to do about it.
// Whatever says that, says it in the words of this package: the overview page, GET /api/status, 'usher
// status', /readyz and the alerts. It only computes: the caller passes in all facts, and the time.
//
//	kinds.go        the table of all troubles
//	troubles.go     what a trouble is, and how all are found
//	health.go       whether each part is ready
//
// The facts of each part, and the funcs that find what is wrong with it:
//
//	ports.go        outbound               entitlements.go  what tenants may use
//	gate.go         who sends webhooks     inbox.go         where they wait
//	receivers.go    who takes them         missed.go        what usher may have missed
//
// And what is said of it elsewhere:
//
//	replicas.go     a trouble as the history has it, and those of other replicas
//	metric.go       usher_trouble
package status

import (
	"time"

	"usher/internal/inbox"
)

// Status is the answer of GET /api/status, and the overview page. The caller fills in the facts; Judge
// adds the words and Troubles.
type Status struct {
	Version      string        `json:"version"`
	Ready        bool          `json:"ready"`
	Parts        []PartState   `json:"parts"`
	Troubles     []Trouble     `json:"problems"` // the worst first
	Ports        []Port        `json:"ports"`
	Gate         *Gate         `json:"gate,omitempty"`         // left out if the gate is off
	Inbox        *Inbox        `json:"inbox,omitempty"`        // left out if there is none
	Entitlements *Entitlements `json:"entitlements,omitempty"` // left out if their port is off
	Missed       inbox.Missed  `json:"missed"`                 // what usher may have missed
	CaughtUp     string        `json:"caught_up,omitempty"`    // what usher has caught up within a day, in words
	// Starting: usher has just been started and does not know yet what was before. No trouble does not mean that
	// all is well.
	Starting bool `json:"starting,omitempty"`

	Notifications *Notifications `json:"notifications,omitempty"` // left out if there are none
	// History is what is over, if somebody asked for it; what ended last first.
	History []inbox.Trouble `json:"history,omitempty"`
	// OldHistory: the inbox cannot be read now, and the history is what this replica has seen itself.
	OldHistory bool `json:"history_old,omitempty"`

	Health    *Health         `json:"-"`
	Elsewhere []inbox.Trouble `json:"-"` // the troubles of other replicas
}

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

// Tones of a state, for its colour.
const (
	good = "good"
	warn = "warn"
	bad  = "bad"
)
