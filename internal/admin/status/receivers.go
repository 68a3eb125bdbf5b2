package status

import (
	"fmt"
	"slices"
	"time"

	"usher/internal/admin/hour"
	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// GateState is how the webhook gate does.
type GateState struct {
	Address   string // where webhooks are posted
	Receivers Receivers
	Decisions []hour.Minute // see metrics.Decisions
}

// ReceiverState is how a receiver does.
type ReceiverState struct {
	Name      string
	Platforms []string // whose webhooks it gets; none: all that no other gets
	Address   string   // no more of it than anybody may see
	Signed    bool     // what it gets is signed
	Tries     metrics.RecentTries
}

// Receivers are those of the gate; none where it is off, and other replicas know them.
type Receivers []ReceiverState

// For returns the receiver of a platform's webhooks; nil: there is none, or it is not known here.
func (all Receivers) For(platform string) (others *ReceiverState) {
	for i := range all {
		switch r := &all[i]; {
		case slices.Contains(r.Platforms, platform):
			return r
		case len(r.Platforms) == 0:
			others = r
		}
	}
	return others
}

// PausedBy returns the pause that holds a tenant's webhooks back, or nil. tried is the receiver that was tried last; the
// one that will be counts, where it is known.
func (all Receivers) PausedBy(paused []inbox.Pause, platform, tenant, tried string) *inbox.Pause {
	if r := all.For(platform); r != nil {
		tried = r.Name
	}
	if i := slices.IndexFunc(paused, func(p inbox.Pause) bool { return p.Covers(platform, tenant, tried) }); i >= 0 {
		return &paused[i]
	}
	return nil
}

// Gate is the webhook gate.
type Gate struct {
	Address   string       `json:"address"`
	Receivers []Receiver   `json:"receivers"`
	Minutes   []GateMinute `json:"minutes"`
}

// GateMinute is what the gate decided within one.
type GateMinute struct {
	Start     time.Time      `json:"start"`
	Decisions map[string]int `json:"decisions"`
}

// Receiver is one receiver.
type Receiver struct {
	Name      string        `json:"name"`
	Platforms []string      `json:"platforms"` // whose webhooks it gets; none: all that no other gets
	Address   string        `json:"address"`
	LastTry   string        `json:"last_try,omitempty"`
	State     string        `json:"state"`   // in words
	Tone      string        `json:"tone"`    // good, warn or bad; empty: not known yet
	Waiting   int           `json:"waiting"` // in the inbox
	Oldest    time.Duration `json:"oldest"`
	Parked    int           `json:"parked"`
	Paused    bool          `json:"paused"` // somebody has paused its deliveries

	wrong diagnosis
}

// newGate has the gate with its receivers; stats is what the inbox says of them, nil without one.
func newGate(g *GateState, stats map[string]inbox.ReceiverStats, paused []inbox.Pause) *Gate {
	s := &Gate{Address: g.Address, Receivers: []Receiver{}}
	for i := range g.Receivers {
		r := &g.Receivers[i]
		var box *inbox.ReceiverStats
		if stats, ok := stats[r.Name]; ok {
			box = &stats
		}
		receiver := newReceiver(r, box)
		receiver.pause(paused)
		s.Receivers = append(s.Receivers, receiver)
	}
	for _, m := range g.Decisions {
		minute := GateMinute{m.Start, make(map[string]int, len(metrics.Decisions))}
		for i, decision := range metrics.Decisions {
			minute.Decisions[decision] = m.Counts[i]
		}
		s.Minutes = append(s.Minutes, minute)
	}
	return s
}

// pause notes that its deliveries are paused, and since then nothing is known of how it does.
func (s *Receiver) pause(all []inbox.Pause) {
	if slices.ContainsFunc(all, func(p inbox.Pause) bool { return p.Tenant == "" && (p.Receiver == "" || p.Receiver == s.Name) }) {
		s.Paused, s.State, s.Tone = true, "paused", warn
	}
}

// diagnosis is what is wrong with a receiver.
type diagnosis string

const (
	fine        diagnosis = ""
	away        diagnosis = "away"         // it does not take anything
	refusesSome diagnosis = "refuses some" // it takes others
)

// manyInARow failures, over all tenants, say that the receiver is down, and not that it refuses some
// of them; only without an inbox, whose courier knows better.
const manyInARow = 10

// newReceiver says how a receiver stands. box is nil without an inbox.
func newReceiver(r *ReceiverState, box *inbox.ReceiverStats) Receiver {
	s := Receiver{Name: r.Name, Platforms: append([]string{}, r.Platforms...), Address: r.Address, LastTry: r.Tries.Last}
	refuses := fmt.Sprintf("did not take %s of the last %d minutes", page.Plural(r.Tries.Failed, "try", "tries"), lately)
	switch t := r.Tries; {
	case box != nil:
		s.Waiting, s.Oldest, s.Parked = box.Pending, box.Oldest, box.Parked
		refuses = "takes webhooks, but not those of " + page.Plural(box.Refused, "tenant", "tenants")
		s.wrong = diagnose(box)
	case t.OK == 0 && t.Last != "" && t.Last != "ok", t.InARow >= manyInARow:
		s.wrong = away
	case t.Failed > 0:
		s.wrong = refusesSome
	}
	switch {
	case s.wrong == away:
		s.State, s.Tone = failureWords(r.Tries.LastFailed), bad
	case s.wrong == refusesSome:
		s.State, s.Tone = refuses, warn
	case s.Parked > 0:
		s.State, s.Tone = fmt.Sprintf("takes webhooks, but %s parked", page.Plural(s.Parked, "is", "are")), warn
	case r.Tries.Last == "":
		s.State = "has not been tried yet"
	default:
		s.State, s.Tone = "takes webhooks", good
	}
	return s
}

// fewTenants that are refused say nothing of the receiver, though nobody else's webhooks came meanwhile.
const fewTenants = 2

// diagnose says what is wrong with a receiver, by what waits for it: not by its last try alone, which may be
// that of any tenant.
func diagnose(box *inbox.ReceiverStats) diagnosis {
	switch {
	case box.Down || box.Missed > 0, box.Refused > fewTenants && box.TakesNone:
		return away
	case box.Refused > 0:
		return refusesSome
	}
	return fine
}

// failureWords says how a receiver fails, by the result of a try.
func failureWords(result string) string {
	switch result {
	case "error":
		return "can't be reached"
	case "timeout":
		return "does not answer in time"
	default:
		return "answers with errors"
	}
}
