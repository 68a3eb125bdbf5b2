// Package status knows how each part of usher is, what that means for customers, and what to do about it.
// Whatever says that, says it in the words of this package: the overview page, GET /api/status, 'usher
// status', /readyz and the alerts. It only computes: the caller passes in all facts, and the time.
//
//	troubles.go     what a trouble is
//	status.go       what is known, as the page and the API have it; health.go: whether each part is ready
//
// The funcs that find what is wrong, each with its words:
//
//	ports.go        outbound               entitlements.go  what tenants may use
//	gate.go         who sends webhooks     inbox.go         where they wait
//	receivers.go    who takes them         missed.go        what usher may have missed
//	catchup.go      the service's log      parts.go         a line for each part, and what is not ready
//	replicas.go     that notifications fail; a trouble as the history has it, and those of other replicas
//
// And what is made of them:
//
//	kinds.go        the table of all troubles
//	judge.go        finds them all
//	charts.go       the charts of the overview
//	metric.go       usher_trouble
package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/inbox"
	"usher/internal/receiver"
	"usher/internal/view"
	"usher/tokens"
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

// Port is the state of a local port. The caller fills in all fields but those that judge derives.
type Port struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Scope   string `json:"scope"`
	Key     bool   `json:"key"`                       // callers need a key
	Shares  string `json:"shares_token_of,omitempty"` // the port whose token it uses; empty if it has its own
	State   string `json:"state"`                     // in words; derived, as are the next three
	Tone    string `json:"-"`                         // good, warn or bad
	Token   *Token `json:"token,omitempty"`           // left out if there is no valid one
	Error   string `json:"error,omitempty"`           // of the last token request

	Source tokens.State     `json:"-"`
	Calls  []metrics.Minute `json:"-"` // of metrics.Port
	Tokens []metrics.Minute `json:"-"` // of metrics.Identity, the same minutes

	Advice  string       `json:"-"` // what to do about Source.Err
	Revoked [2]time.Time `json:"-"` // when the last two tokens were rejected long before they expired

	metrics.LastCalls `json:"-"`

	now time.Time // set by judge
}

// Token describes a token without showing it.
type Token struct {
	Fingerprint string    `json:"fingerprint"`
	Renewed     time.Time `json:"renewed"`
	Expires     time.Time `json:"expires"`
}

// Gate is the state of the webhook gate.
type Gate struct {
	Address   string     `json:"address"` // where webhooks are posted
	Receivers []Receiver `json:"receivers"`

	Set       *receiver.Set                  `json:"-"`
	Tries     map[string]metrics.RecentTries `json:"-"` // by the receiver's name
	Decisions []metrics.Minute               `json:"-"` // of metrics.Gate

	FailedChecks metrics.FailedChecks `json:"-"`
	Questions    metrics.Questions    `json:"-"`

	CertificateEnds time.Time `json:"-"` // zero without TLS
	CatchUp         *CatchUp  `json:"-"` // nil: there is none

	// Only without an inbox:
	Invalid        int     `json:"invalid,omitempty"` // webhooks that usher rejected, and that nobody has sent again
	InvalidDetails Details `json:"-"`
}

// Receiver is the state of a receiver.
type Receiver struct {
	Name string `json:"name"`
	// Platforms says whose webhooks it gets; if empty, those of all platforms that no other receiver has.
	Platforms []string      `json:"platforms"`
	Address   string        `json:"address"`
	LastTry   string        `json:"last_try,omitempty"` // see metrics.RecentTries.Last
	State     string        `json:"state"`              // in words; from the troubles
	Tone      string        `json:"tone"`               // good, warn or bad; empty: nobody knows
	Waiting   int           `json:"waiting"`            // webhooks in the inbox
	Oldest    time.Duration `json:"oldest"`
	Parked    int           `json:"parked"`
	Paused    bool          `json:"paused"` // somebody has paused its deliveries

	down    bool // it takes no webhooks
	failing int  // the tenants whose webhooks it does not take
	tries   metrics.RecentTries

	deliveries []metrics.Minute // of metrics.Receiver
	since      time.Time        // since when; zero: not known
	last       time.Time        // when it last took something; zero: never
}

// Inbox is the state of the inbox.
type Inbox struct {
	Waiting    int           `json:"waiting"`
	Oldest     time.Duration `json:"oldest"`
	Parked     int           `json:"parked"`
	Invalid    int           `json:"invalid"`     // webhooks that usher rejected, and that nobody has dealt with
	Used       int64         `json:"used"`        // bytes of the webhooks that wait or are parked
	Limit      int64         `json:"limit"`       // how large Used may become
	HeldUp     []view.HeldUp `json:"held_up"`     // the one that waits longest first
	ClockAhead time.Duration `json:"clock_ahead"` // by how much this machine's clock is ahead of the database's
	Homeless   int           `json:"homeless"`    // webhooks that wait although no receiver takes their platform
	Shared     bool          `json:"shared"`      // with other replicas
	Paused     []inbox.Pause `json:"paused,omitempty"`
	// Error says why the inbox takes no webhooks; also during the first seconds, before usher is unready.
	Error   string    `json:"error,omitempty"`
	Counted time.Time `json:"counted,omitzero"` // the inbox cannot be read now, and its counts are those of this time
	Unknown bool      `json:"-"`                // it was never read, so the counts mean nothing

	ParkedDetails  Details `json:"-"`
	InvalidDetails Details `json:"-"`

	stats inbox.Stats
}

// Details describes a group of webhooks that somebody should look at.
type Details struct {
	Tenants []string  // the newest first
	Reason  string    // of the newest webhook; may be empty
	Since   time.Time // when the oldest came
	Link    string    // the page that shows them
}

// CatchUp is how usher stands to the billing service's webhook log.
type CatchUp struct {
	Failed  string    // why the log cannot be read, in foreign words; empty: it can
	Refused bool      // it stays so until somebody changes something in the service
	Since   time.Time // of Failed

	Elsewhere bool // the log has provisioning webhooks, and all of them went to other addresses
	Shorter   bool // the log ends before the newest event that usher has read

	// Webhooks that the gate could have got, and that came through the log alone, since the last that it got.
	Alone      int
	AloneSince time.Time
	Answer     string // what the service got for the first of them; empty: no answer

	// What usher has last caught up.
	CaughtAt          time.Time // the last of it; zero: nothing was caught up
	Webhooks, Tenants int
	From, To          time.Time // when the service made them
	Down              bool      // all of them before this usher was up
}

// Entitlements is the state of the port that answers what a tenant may use.
type Entitlements struct {
	Tenants int `json:"tenants"` // how many are known
	Held    int `json:"held"`    // for how many usher can answer without the inbox
	Unknown int `json:"unknown"` // how many of them have a last webhook without features that can be read

	UnknownDetails Details         `json:"-"`
	Renamed        []inbox.Renamed `json:"-"`

	Answers metrics.Answers `json:"-"` // of the last minutes
}

// PartState is one line about a part.
type PartState struct {
	Name  string `json:"name"`
	On    bool   `json:"on"`
	Ready bool   `json:"ready"`
	State string `json:"state"`          // in words
	Tone  string `json:"tone,omitempty"` // good, warn or bad; empty if it is off
}

// Notifications is how usher says by itself that something is wrong.
type Notifications struct {
	Last  time.Time `json:"last,omitzero"`   // when the last message went out; zero: none did that anybody knows of
	Error string    `json:"error,omitempty"` // why the last try failed; empty: it did not
	Since time.Time `json:"since,omitzero"`  // since when tries fail
}

// line returns the words of a line, which are those of all troubles about it, and its tone, which is that of
// the worst. Without a trouble they are these.
func (s *Status) line(part, name, quiet, tone string) (string, string) {
	var says []string
	troubled := false
	for i := range s.Troubles { // the worst first
		for _, about := range s.Troubles[i].about {
			if about.Part != part || about.Name != name {
				continue
			}
			if !troubled {
				troubled, tone = true, s.Troubles[i].tone()
			}
			if about.says != "" && !slices.Contains(says, about.says) {
				says = append(says, about.says)
			}
		}
	}
	return cmp.Or(strings.Join(says, "; "), quiet), tone
}

// of returns the worst trouble about a part, or about one of its ports or receivers; nil: there is none.
func (s *Status) of(part string) *Trouble {
	for i := range s.Troubles {
		if slices.ContainsFunc(s.Troubles[i].about, func(about Subject) bool { return about.Part == part }) {
			return &s.Troubles[i]
		}
	}
	return nil
}

func (p *Port) of(says string) Subject { return Subject{"outbound", p.Name, says} }

func (r *Receiver) of(says string) Subject {
	return Subject{"gate", r.Name, says}
}
