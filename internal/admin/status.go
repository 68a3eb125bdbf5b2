package admin

import (
	"time"

	"usher/internal/admin/hour"
	"usher/internal/admin/metrics"
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

	Calls  []hour.Minute // see metrics.CallsFine and so on
	Tokens []hour.Minute // see metrics.TokensRenewed and so on
}

// GateState is how the webhook gate stands.
type GateState struct {
	Address   string // where webhooks are posted
	Receivers []ReceiverState
	Decisions []hour.Minute
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
	Link     string `json:"-"` // the page of the webhooks that it is about
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
	Used       int64         `json:"used"`       // bytes that wait or are parked
	Limit      int64         `json:"limit"`      // bytes that may
	HeldUp     []HeldUp      `json:"held_up"`    // who waits behind a webhook that was tried in vain, the longest first
	Homeless   int           `json:"homeless"`   // how many wait though no receiver takes their platform
	Delivering bool          `json:"delivering"` // from here, and not by another replica
	Shared     bool          `json:"shared"`     // with other replicas: the figures are of what this one delivers
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
	}
	var receivers map[string]inbox.ReceiverStats
	if box := h.cfg.Inbox; box != nil && box.Stats != nil {
		stats := box.Stats()
		receivers = stats.Receivers
		s.Inbox = inboxStatus(stats, box.Err())
		s.Inbox.Shared = box.Shared
		s.Inbox.HeldUp = h.heldUp()
	}
	if gate != nil {
		s.Gate = gateStatus(gate, receivers, h.paused())
	}
	s.Wrong = h.troubles(ports, gate, s)
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
			Start: m.Start, Calls: m.Sum(metrics.CallsFine, metrics.CallsFailed), Failed: m.Counts[metrics.CallsFailed],
			Replayed: m.Counts[metrics.CallsReplayed], P50: m.P50, P99: m.P99,
		}
		if i < len(p.Tokens) {
			minute.Renewed = p.Tokens[i].Counts[metrics.TokensRenewed]
		}
		s.Minutes = append(s.Minutes, minute)
	}
	return s
}

// gateStatus has the gate with its receivers; receivers is what the inbox says of them, nil without one.
func gateStatus(g *GateState, receivers map[string]inbox.ReceiverStats, paused []inbox.Pause) *GateStatus {
	s := &GateStatus{Address: g.Address, Receivers: []ReceiverStatus{}}
	for i := range g.Receivers {
		r := &g.Receivers[i]
		var box *inbox.ReceiverStats
		if stats, ok := receivers[r.Name]; ok {
			box = &stats
		}
		status := receiverStatus(r, box)
		status.pause(paused)
		s.Receivers = append(s.Receivers, status)
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

func inboxStatus(stats inbox.Stats, err error) *InboxStatus {
	s := &InboxStatus{
		Waiting: stats.Pending, Oldest: stats.Oldest, Parked: stats.Parked, Used: stats.Used, Limit: stats.Limit,
		Homeless: stats.Receivers[""].Pending, Delivering: stats.Delivering, Unknown: stats.Unknown, Paused: stats.Paused,
	}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}
