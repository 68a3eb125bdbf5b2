// Package state has the states of a webhook in an inbox. It is the only list of them: what Go, SQL, commands and
// pages know of states comes from here.
package state

import (
	"fmt"
	"strings"
)

// State is the state of a webhook in the inbox.
type State string

// A webhook waits until it is delivered, parked, superseded by a newer snapshot of its tenant, or discarded by hand.
// A redelivery makes it wait again. A webhook is stored if no receiver takes its platform: usher keeps it to answer
// from, and never delivers it. An invalid webhook was never taken in; if somebody accepts it, it is taken in as a new
// webhook.
const (
	Waiting    State = "waiting"
	Parked     State = "parked"
	Invalid    State = "invalid"
	Delivered  State = "delivered"
	Superseded State = "superseded"
	Discarded  State = "discarded"
	Stored     State = "stored"
	Replaced   State = "replaced"
)

// A Kind is what several states have in common.
type Kind uint8

const (
	Open      Kind = 1 << iota // it counts in its tenant's queue
	Attention                  // somebody may have to deal with it
	Finished                   // it is only history: nothing more will be done with it
	Taken                      // it was accepted: by its receiver, or by usher itself if it has no receiver
	Rejected                   // it was never taken in
)

// kinds are the names of kinds in SQL.
var kinds = map[string]Kind{
	"open": Open, "attention": Attention, "finished": Finished, "taken": Taken, "rejected": Rejected,
}

// All has all states, those first that somebody may have to deal with. The database stores a state's index, so a new
// one must be added at the end. An usher that does not know it takes the row for damaged: once there are releases, one
// has to know a new state, and the next one enters it.
var All = []struct {
	State
	Kind
	Means string // in the help of 'usher inbox'
	Tone  string // its colour on a page: good, warn, bad or calm
}{
	{Waiting, Open, "for its first or next try", "warn"},
	{Parked, Open | Attention, "the receiver did not take it, and usher does not try it again", "bad"},
	{Invalid, Attention | Rejected, "usher did not take it in: its content is wrong", "bad"},
	{Delivered, Finished | Taken, "the receiver took it", "good"},
	{Superseded, Finished, "a newer one of the same tenant took its place", "calm"},
	{Discarded, Finished, "somebody decided that it is never sent", "calm"},
	{Stored, Finished | Taken, "stored but not delivered: no receiver takes its platform, or a reconcile stored it. " +
		"Entitlements use it", "calm"},
	{Replaced, Finished | Rejected, "somebody accepted it although it is invalid: it has a new id", "calm"},
}

// Names are the names of all states.
func Names() (names []string) {
	for i := range All {
		names = append(names, string(All[i].State))
	}
	return names
}

// Number is the state's number in the database; -1: there is no such state.
func (s State) Number() int64 {
	for i := range All {
		if All[i].State == s {
			return int64(i)
		}
	}
	return -1
}

// Of returns the state with a number of the database; empty: there is none, so the row is damaged.
func Of(number int64) State {
	if number < 0 || number >= int64(len(All)) {
		return ""
	}
	return All[number].State
}

// Is says whether the state is of a kind.
func (s State) Is(k Kind) bool { n := s.Number(); return n >= 0 && All[n].Kind&k != 0 }

// Taken says whether a webhook in this state was accepted: by its receiver, or by usher itself if it has no receiver.
func (s State) Taken() bool { return s.Is(Taken) }

// Finished says whether a webhook in this state is only history: nothing more will be done with it.
func (s State) Finished() bool { return s.Is(Finished) }

// Open says whether a webhook in this state counts in its lane: it waits, or is parked.
func (s State) Open() bool { return s.Is(Open) }

// SQL are pairs of what stands in statements and its replacement: behind a column "{NAME}" is a condition, that it
// has the number of the state, or of one of the states of that kind; "{#NAME}" is the number itself.
func SQL() (pairs []string) {
	for n := range All {
		name := string(All[n].State)
		pairs = append(pairs, "{"+name+"}", fmt.Sprint("= ", n), "{#"+name+"}", fmt.Sprint(n))
	}
	for name, kind := range kinds {
		pairs = append(pairs, "{"+name+"}", condition(kind))
	}
	return pairs
}

// numbers returns the numbers of states of some kinds.
func numbers(of func(Kind) bool) (all []string) {
	for n := range All {
		if of(All[n].Kind) {
			all = append(all, fmt.Sprint(n))
		}
	}
	return all
}

// condition is a comparison where one is enough, because an engine evaluates it for each row of a partial index.
func condition(k Kind) string {
	all := numbers(func(of Kind) bool { return of&k != 0 })
	if first := len(All) - len(all); all[0] == fmt.Sprint(first) { // all up to the end
		return fmt.Sprint("> ", first-1)
	}
	return "IN (" + strings.Join(all, ", ") + ")"
}
