package status

import (
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/inbox"
	"usher/internal/view"
)

// Trouble is something that waits for a person, or that hurts a customer. It is the only judgement in usher:
// what the line of a part, a port or a receiver says comes from the troubles about it, so no line is green
// beside a red box.
type Trouble struct {
	inbox.TroubleWords
	Since   time.Time `json:"since,omitzero"`    // zero: nobody knows
	Replica string    `json:"replica,omitempty"` // whose it is, if it is another one's
	Link    string    `json:"-"`                 // address of the page that shows more; empty for none

	about []Subject
	own   bool   // this replica finds it by itself
	which string // tells troubles of the same kind about the same subject apart
	// bare is what messages and the history have instead of What: without what somebody else has written.
	bare string
}

// Subject is what a trouble is about: a part of usher, or a port of outbound, or a receiver of the gate.
type Subject struct {
	Part string
	Name string // of the port or the receiver; empty: the part itself
	says string // what its line says because of the trouble; empty: what it says without one
}

// Of the gate, of entitlements, of one port, of one receiver.
func ofGate(says string) Subject         { return Subject{Part: "gate", says: says} }
func ofEntitlements(says string) Subject { return Subject{Part: "entitlements", says: says} }

// wrong returns a trouble. Its kind is that of the row of Kinds that finds it.
func wrong(what string, about ...Subject) Trouble {
	return Trouble{TroubleWords: inbox.TroubleWords{What: what}, about: about}
}

// only returns this trouble alone.
func (t Trouble) only() []Trouble { return []Trouble{t} }

func (t Trouble) severity(s string) Trouble {
	t.Severity = s
	return t
}

func (t Trouble) since(at time.Time) Trouble {
	if !at.IsZero() {
		t.Since = at.UTC().Truncate(time.Second)
	}
	return t
}

// naming says which tenants a trouble names: it goes with the first of them that is erased.
func (t Trouble) naming(names []string) Trouble {
	t.Named = names[:min(100, len(names))]
	return t
}

// quoting adds what somebody else has said. It is on the page, but no message and no history has it:
// it may repeat a payload.
func (t Trouble) quoting(who, words string) Trouble {
	t.bare = t.What
	t.What += quoted(who, words)
	return t
}

func (t Trouble) link(to string) Trouble {
	t.Link = to
	return t
}

func (t Trouble) run(command string) Trouble {
	t.Run = command
	return t
}

// goesAfter is how long something that was wrong may be over before it is no trouble any more.
const goesAfter = 30 * time.Second

// isOver says whether something that comes again and again is over: it last went wrong a while ago, and well since.
func isOver(wrong, well, now time.Time) bool { return now.Sub(wrong) >= goesAfter && well.After(wrong) }

// lately is how many minutes count as now.
const lately = metrics.Lately

// tone returns the colour of what a trouble is about. Nil: there is none.
func (t *Trouble) tone() string {
	switch {
	case t == nil:
		return good
	case t.Severity == Critical:
		return bad
	default:
		return warn
	}
}

// Kind is what all troubles of one kind have in common.
type Kind struct {
	Name     string
	Severity string // Critical or Warning; one trouble may say the other
	Means    string // what it means for customers; one trouble may know better
	Do       string // what to do; one trouble may know better

	but string // when a trouble of this kind has the other severity, for docs/operations.md
	own bool   // a replica finds it by itself; else all that share an inbox see the same
}

// Severities, as alerts have them.
const (
	Critical = "critical" // something does not work now
	Warning  = "warning"  // it may soon not work, or somebody should look at it
)

// Kinds that others know by their names. No message says the first: it could not be sent.
const (
	NotifyFails  = "notifications-fail"
	pausedKind   = "paused"
	receiverDown = "receiver-down"
)

// Tones of a state, for its colour.
const (
	good = "good"
	warn = "warn"
	bad  = "bad"
)

// quoted returns somebody's words, or nothing if there are none.
func quoted(who, words string) string {
	if words == "" {
		return ""
	}
	return "; " + who + ": " + view.Excerpt(words)
}
