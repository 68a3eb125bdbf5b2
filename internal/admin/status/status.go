// Package status says how usher stands, in words. Its parts say how each of them does (State); Of makes of that what
// the overview and GET /api/status show (Status). It asks nobody for anything: all that it speaks of is handed in, the
// time, too.
package status

import "time"

// Status is the answer of GET /api/status: what the overview shows. The caller says how the parts do; Judge adds what that means.
type Status struct {
	Version string    `json:"version"`
	Ready   bool      `json:"ready"`
	Wrong   []Trouble `json:"problems"` // the worst first
	Ports   []Port    `json:"ports"`
	Gate    *Gate     `json:"gate,omitempty"`  // left out when the gate is off
	Inbox   *Inbox    `json:"inbox,omitempty"` // left out when there is none

	Stopping bool `json:"-"` // usher is shutting down
}

// Judge says in words how usher's parts do.
func (s *Status) Judge(now time.Time) {
	s.Ports = append([]Port{}, s.Ports...) // [] and not null
	for i := range s.Ports {
		s.Ports[i].judge(now)
	}
	if s.Gate != nil {
		s.Gate.judge(s.Inbox)
	}
	s.Wrong = s.troubles(now)
}
