package status

import (
	"fmt"
	"slices"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/inbox/store"
	"usher/internal/receiver"
)

// PausedBy returns the pause that holds a tenant's webhooks back, or nil. tried is the receiver that was tried last; the
// one that will be counts, where it is known. known are those of the gate; none where it is off, and other replicas know them.
func PausedBy(paused []store.Pause, known *receiver.Set, platform, tenant, tried string) *store.Pause {
	if r := known.For(platform); r != nil {
		tried = r.Name
	}
	if i := slices.IndexFunc(paused, func(p store.Pause) bool { return p.Covers(platform, tenant, tried) }); i >= 0 {
		return &paused[i]
	}
	return nil
}

// Gate is the webhook gate.
type Gate struct {
	Address   string       `json:"address"` // where webhooks are posted
	Receivers []Receiver   `json:"receivers"`
	Minutes   []GateMinute `json:"minutes"`

	Set       *receiver.Set                  `json:"-"`
	Tries     map[string]metrics.RecentTries `json:"-"` // at each receiver, by its name
	Decisions []metrics.Minute               `json:"-"` // see metrics.Decisions

	// Without an inbox: how many webhooks were refused and not sent again since, and the tenants whose last webhook failed, in the
	// last minutes, the newest first.
	Refused     int      `json:"refused,omitempty"`
	RefusedOnes Few      `json:"-"`
	FailedOf    []string `json:"-"`
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

// judge says how the receivers do; box is nil without an inbox.
func (g *Gate) judge(box *Inbox) {
	g.Receivers = []Receiver{} // [] and not null
	for _, r := range g.Set.All() {
		g.Receivers = append(g.Receivers, newReceiver(r, g.Tries[r.Name], box))
	}
	for _, m := range g.Decisions {
		minute := GateMinute{m.Start, make(map[string]int, len(metrics.Decisions))}
		for i, decision := range metrics.Decisions {
			minute.Decisions[decision] = m.Counts[i]
		}
		g.Minutes = append(g.Minutes, minute)
	}
}

// diagnosis is what is wrong with a receiver.
type diagnosis string

const (
	fine        diagnosis = ""
	away        diagnosis = "away"         // it does not take anything
	refusesSome diagnosis = "refuses some" // it takes others
)

// newReceiver says how a receiver stands. box is nil without an inbox.
func newReceiver(r *receiver.Receiver, tries metrics.RecentTries, box *Inbox) Receiver {
	s := Receiver{Name: r.Name, Platforms: append([]string{}, r.Platforms...), Address: r.Address(), LastTry: tries.Last, wrong: diagnose(tries)}
	refuses := fmt.Sprintf("failed %s in the last %d minutes", page.Plural(tries.Failed, "time", "times"), lately)
	if box != nil {
		if stats, ok := box.stats.Receivers[r.Name]; ok {
			s.Waiting, s.Oldest, s.Parked, s.wrong = stats.Pending, stats.Oldest, stats.Parked, diagnoseInbox(&stats)
			refuses = "takes webhooks, but not those of " + page.Plural(stats.Refused, "tenant", "tenants")
		}
		s.Paused = slices.ContainsFunc(box.Paused, func(p store.Pause) bool { return p.Tenant == "" && (p.Receiver == "" || p.Receiver == r.Name) })
	}
	switch {
	case s.Paused: // since then nothing is known of how it does
		s.State, s.Tone = "paused", warn
	case s.wrong == away:
		s.State, s.Tone = failureWords(tries.LastFailed), bad
	case s.wrong == refusesSome:
		s.State, s.Tone = refuses, warn
	case s.Parked > 0:
		s.State, s.Tone = fmt.Sprintf("takes webhooks, but %s parked", page.Plural(s.Parked, "is", "are")), warn
	case tries.Last == "":
		s.State = "has not been tried yet"
	default:
		s.State, s.Tone = "takes webhooks", good
	}
	return s
}

// manyInARow failures, over all tenants, say that the receiver is down, and not that it refuses some
// of them; only without an inbox, whose courier knows better.
const manyInARow = 10

// diagnose says what is wrong with a receiver, by the last tries.
func diagnose(tries metrics.RecentTries) diagnosis {
	switch {
	case tries.OK == 0 && tries.Last != "" && tries.Last != "ok", tries.InARow >= manyInARow:
		return away
	case tries.Failed > 0:
		return refusesSome
	}
	return fine
}

// fewTenants that are refused say nothing of the receiver, though nobody else's webhooks came meanwhile.
const fewTenants = 2

// diagnoseInbox says it by what waits for it: not by its last try alone, which may be that of any tenant.
func diagnoseInbox(box *inbox.ReceiverStats) diagnosis {
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
