package status

import (
	"slices"
	"strings"
	"time"

	"usher/internal/admin/metrics"
)

// Trouble is something that waits for a person, or that hurts a customer. To add one: declare its Kind, and add a func to checks.
type Trouble struct {
	What string `json:"what"` // what is wrong
	Kind
	Run   string    `json:"run,omitempty"`  // the command for Do
	Since time.Time `json:"since,omitzero"` // zero: nobody knows
	Link  string    `json:"-"`              // address of the page that shows more; empty for none
}

// Kind is what all troubles of one kind have in common. Its words are fixed, because its alert, in deploy/prometheus, says the same.
type Kind struct {
	Severity string `json:"severity"`        // Critical or Warning
	Means    string `json:"means"`           // what it means for customers
	Do       string `json:"do"`              // what to do
	Alert    string `json:"alert,omitempty"` // its alert; empty for none
}

// Severities, as alerts have them.
const (
	Critical = "critical" // something does not work now
	Warning  = "warning"  // it may soon not work, or somebody should look at it
)

// Kinds are all kinds of troubles.
var Kinds []*Kind

func kind(severity, alert, means, do string) *Kind {
	k := &Kind{severity, means, do, alert}
	Kinds = append(Kinds, k)
	return k
}

// is returns a trouble of this kind.
func (k *Kind) is(what string) Trouble { return Trouble{What: what, Kind: *k} }

func (t Trouble) since(at time.Time) Trouble {
	if !at.IsZero() {
		t.Since = at.UTC().Truncate(time.Second)
	}
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

// checks find all troubles. Each looks at the facts, and returns the troubles that it finds, or none. They run in this order; of two
// troubles of the same severity the first comes first.
var checks = []func(s *Status, now time.Time) []Trouble{
	storageTroubles,
	deliveryTroubles,
	passThroughTroubles,
	inboxTroubles,
	missedTroubles,
	featureTroubles,
	reconcileTroubles,
	tokenTroubles,
	callTroubles,
	questionTroubles,
	senderTroubles,
	certificateTroubles,
	pauseTroubles,
}

// lately is how many minutes count as now.
const lately = metrics.Lately

func (s *Status) troubles(now time.Time) []Trouble {
	all := []Trouble{} // [] and not null
	for _, check := range checks {
		all = append(all, check(s, now)...)
	}
	// Whatever makes usher unready is a trouble, also if nobody has thought of it above.
	if !s.Ready && !slices.ContainsFunc(all, func(t Trouble) bool { return t.Severity == Critical }) {
		all = append(all, notReady.is("usher is not ready: "+strings.Join(s.Health.Unready(), "; ")))
	}
	slices.SortStableFunc(all, func(a, b Trouble) int { return strings.Compare(a.Severity, b.Severity) })
	return all
}

var notReady = kind(Critical, "UsherDown",
	"While the gate is not ready, senders get 503, and changes do not reach your customers. While outbound is not ready, calls get an error.",
	"Wait a few seconds. If usher is still not ready, read its log.")

// Pauses are troubles: changes do not reach customers, and most of them somebody has to end. A banner on every page says the same.
func pauseTroubles(s *Status, _ time.Time) (all []Trouble) {
	if s.Inbox == nil {
		return nil
	}
	for _, p := range s.Inbox.Paused {
		all = append(all, paused.is("Paused: "+p.Words()).since(p.Since).run("usher inbox resume"+p.Flag()))
	}
	return all
}

var paused = kind(Warning, "UsherInboxPaused",
	"Senders still get 200; their webhooks wait. Changes do not reach your customers until the pause ends.",
	"When it is no longer needed, resume the deliveries. A pause without an end lasts until somebody does.")

// Others returns the troubles without the pauses, which the page shows in a banner.
func (s *Status) Others() []Trouble {
	return slices.DeleteFunc(slices.Clone(s.Troubles), func(t Trouble) bool { return t.Kind == *paused })
}
