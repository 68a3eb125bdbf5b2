// Package status says how usher stands, in words. Its parts say how each of them does (State); Of makes of that what
// the overview and GET /api/status show (Status). It asks nobody for anything: all that it speaks of is handed in, the
// time, too.
package status

import (
	"time"

	"usher/internal/admin/decisions"
	"usher/internal/inbox"
)

// State is how usher's parts do, as they say.
type State struct {
	Version   string
	Ready     bool
	Stopping  bool // usher is shutting down
	Ports     []PortState
	Gate      *GateState         // nil: it is off
	Inbox     *InboxState        // nil: there is none
	Decisions []*decisions.Entry // the gate's last, the newest first; only needed without an inbox
}

// Status is the answer of GET /api/status: what the overview shows.
type Status struct {
	Version string    `json:"version"`
	Ready   bool      `json:"ready"`
	Wrong   []Trouble `json:"problems"` // the worst first
	Ports   []Port    `json:"ports"`
	Gate    *Gate     `json:"gate,omitempty"`  // left out when the gate is off
	Inbox   *Inbox    `json:"inbox,omitempty"` // left out when there is none
}

// Of says how usher stands.
func Of(s *State, now time.Time) *Status {
	out := &Status{Version: s.Version, Ready: s.Ready, Ports: []Port{}} // [] and not null
	for i := range s.Ports {
		out.Ports = append(out.Ports, newPort(&s.Ports[i], now))
	}
	var (
		known  Receivers
		paused []inbox.Pause
		stats  map[string]inbox.ReceiverStats
	)
	if s.Gate != nil {
		known = s.Gate.Receivers
	}
	if s.Inbox != nil {
		paused, stats = s.Inbox.Stats.Paused, s.Inbox.Stats.Receivers
		out.Inbox = newInbox(s.Inbox, known)
	}
	if s.Gate != nil {
		out.Gate = newGate(s.Gate, stats, paused)
	}
	out.Wrong = troubles(s, out, now)
	return out
}
