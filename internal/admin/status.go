package admin

import (
	"time"

	"usher/internal/admin/hour"
	"usher/internal/inbox"
	"usher/tokens"
)

// PortState is how a local port stands.
type PortState struct {
	Name    string
	Address string
	Scope   string
	Keyed   bool   // callers need a key
	Shares  string // the port whose token it uses; empty: it has its own
	Token   tokens.State

	// The variables that its identity comes from: what somebody has to look at when
	// the token endpoint refuses.
	ClientVariable, SecretVariable, ScopeVariable string

	Calls  []hour.Minute // see callsFine and so on
	Tokens []hour.Minute // see tokensRenewed and so on
}

// GateState is how the webhook gate stands.
type GateState struct {
	Address   string // where webhooks are posted
	Receivers []ReceiverState
	Decisions []hour.Minute
}

// ReceiverState is how a receiver stands.
type ReceiverState struct {
	Name      string
	Platforms []string // whose webhooks it gets; none: all that no other gets
	Address   string   // no more of it than anybody may see
	LastTry   string   // ok, status, timeout or error; empty before the first
}

// Status is the answer of GET /api/status: what the overview shows.
type Status struct {
	Version string       `json:"version"`
	Ready   bool         `json:"ready"`
	Wrong   []Trouble    `json:"problems"` // the worst first
	Ports   []PortStatus `json:"ports"`
	Gate    *GateStatus  `json:"gate,omitempty"`  // left out when the gate is off
	Inbox   *InboxStatus `json:"inbox,omitempty"` // left out when there is none
}

// Trouble is something that is wrong, and what to do about it.
type Trouble struct {
	Severity string `json:"severity"` // bad: something does not work; warn: it will not, or somebody should look
	What     string `json:"what"`
	Do       string `json:"do"`
	Link     string `json:"-"`
}

// PortStatus is a local port.
type PortStatus struct {
	Name    string       `json:"name"`
	Address string       `json:"address"`
	Scope   string       `json:"scope"`
	Key     bool         `json:"key"`
	Shares  string       `json:"shares_token_of,omitempty"`
	State   string       `json:"state"` // in words
	Tone    string       `json:"-"`
	Token   *TokenStatus `json:"token,omitempty"` // left out when there is no valid one
	Error   string       `json:"error,omitempty"` // of the last request for one
	Minutes []PortMinute `json:"minutes"`         // the last hour, the oldest first
}

// TokenStatus is a token without what makes it one.
type TokenStatus struct {
	Fingerprint string    `json:"fingerprint"`
	Renewed     time.Time `json:"renewed"`
	Expires     time.Time `json:"expires"`
}

// PortMinute is what happened on a port within one.
type PortMinute struct {
	Start    time.Time     `json:"start"`
	Calls    int           `json:"calls"`
	Failed   int           `json:"failed"`
	Replayed int           `json:"replayed"`
	Renewed  int           `json:"renewed"`
	P50      time.Duration `json:"p50"` // nanoseconds, as all durations here
	P99      time.Duration `json:"p99"`
}

// GateStatus is the webhook gate.
type GateStatus struct {
	Address   string           `json:"address"`
	Receivers []ReceiverStatus `json:"receivers"`
	Minutes   []GateMinute     `json:"minutes"`
}

// ReceiverStatus is one receiver.
type ReceiverStatus struct {
	Name      string   `json:"name"`
	Platforms []string `json:"platforms"` // whose webhooks it gets; none: all that no other gets
	Address   string   `json:"address"`
	LastTry   string   `json:"last_try,omitempty"`
	State     string   `json:"state"` // in words
	Tone      string   `json:"-"`
}

// GateMinute is what the gate decided within one.
type GateMinute struct {
	Start     time.Time      `json:"start"`
	Decisions map[string]int `json:"decisions"`
}

// InboxStatus counts what is in the inbox.
type InboxStatus struct {
	Waiting    int           `json:"waiting"`
	Oldest     time.Duration `json:"oldest"`
	Parked     int           `json:"parked"`
	Delivering bool          `json:"delivering"` // from here, and not by another replica
	Shared     bool          `json:"shared"`     // with other replicas
	Paused     []inbox.Pause `json:"paused,omitempty"`
	Error      string        `json:"error,omitempty"` // why it takes nothing in any more
	Unknown    bool          `json:"-"`               // nothing could be read yet: the counts say nothing
}

// status gathers how everything stands.
func (h *Handler) status() *Status {
	unready := h.cfg.Unready()
	s := &Status{Version: h.cfg.Version, Ready: len(unready) == 0, Ports: []PortStatus{}}
	var ports []PortState
	if h.cfg.Ports != nil {
		ports = h.cfg.Ports()
	}
	for i := range ports {
		s.Ports = append(s.Ports, portStatus(&ports[i], time.Now()))
	}
	var gate *GateState
	if h.cfg.Gate != nil {
		gate = h.cfg.Gate()
		s.Gate = gateStatus(gate)
	}
	if box := h.cfg.Inbox; box != nil && box.Stats != nil {
		s.Inbox = inboxStatus(box.Stats(), box.Err())
		s.Inbox.Shared = box.Shared
	}
	s.Wrong = troubles(unready, ports, gate, s.Inbox)
	return s
}

func portStatus(p *PortState, now time.Time) PortStatus {
	s := PortStatus{Name: p.Name, Address: p.Address, Scope: p.Scope, Key: p.Keyed, Shares: p.Shares}
	if t := p.Token.Token; t != nil {
		s.Token = &TokenStatus{t.Fingerprint(), t.Asked(), t.Expiry()}
	}
	if p.Token.Err != nil {
		s.Error = p.Token.Err.Error()
	}
	s.State, s.Tone = tokenWords(p, now)
	for i, m := range p.Calls {
		minute := PortMinute{
			Start: m.Start, Calls: m.Sum(callsFine, callsFailed), Failed: m.Counts[callsFailed],
			Replayed: m.Counts[callsReplayed], P50: m.P50, P99: m.P99,
		}
		if i < len(p.Tokens) {
			minute.Renewed = p.Tokens[i].Counts[tokensRenewed]
		}
		s.Minutes = append(s.Minutes, minute)
	}
	return s
}

func gateStatus(g *GateState) *GateStatus {
	s := &GateStatus{Address: g.Address, Receivers: []ReceiverStatus{}}
	for _, r := range g.Receivers {
		status := ReceiverStatus{Name: r.Name, Platforms: append([]string{}, r.Platforms...), Address: r.Address, LastTry: r.LastTry}
		status.State, status.Tone = r.words()
		s.Receivers = append(s.Receivers, status)
	}
	for _, m := range g.Decisions {
		minute := GateMinute{m.Start, make(map[string]int, len(Decisions))}
		for i, decision := range Decisions {
			minute.Decisions[decision] = m.Counts[i]
		}
		s.Minutes = append(s.Minutes, minute)
	}
	return s
}

func inboxStatus(stats inbox.Stats, err error) *InboxStatus {
	s := &InboxStatus{Waiting: stats.Pending, Oldest: stats.Oldest, Parked: stats.Parked, Delivering: stats.Delivering, Unknown: stats.Unknown, Paused: stats.Paused}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}
