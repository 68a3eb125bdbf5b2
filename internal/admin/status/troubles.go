package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/inbox"
)

// Trouble is something that waits for a person, or that hurts a customer. It is the only judgement in usher:
// what the line of a part, a port or a receiver says comes from the troubles about it, so no line is green
// beside a red box. To add one: declare its Kind, and add a func to checks.
type Trouble struct {
	What string `json:"what"` // what is wrong
	Kind
	Run      string    `json:"run,omitempty"`      // the command for Do
	Since    time.Time `json:"since,omitzero"`     // zero: nobody knows
	Replica  string    `json:"replica,omitempty"`  // whose it is, if it is another one's
	Webhooks int       `json:"webhooks,omitempty"` // how many it is about
	Tenants  int       `json:"tenants,omitempty"`
	Link     string    `json:"-"` // address of the page that shows more; empty for none

	about  []Subject
	turned bool   // it has been something else since Since: in the history it begins when it is noticed
	which  string // tells troubles of the same kind about the same subject apart
	// bare is what messages and the history have instead of What: without what somebody else has written, or
	// what only holds now.
	bare   string
	named  []string  // tenants that it is about, as inbox.ShowTenant writes them; none: it may concern any
	others bool      // and others
	over   time.Time // zero: it is not
	then   string    // what is to do although it is over
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
func (p *Port) of(says string) Subject   { return Subject{"outbound", p.Name, says} }
func (r *Receiver) of(says string) Subject {
	return Subject{"gate", r.Name, says}
}

// Kind is what all troubles of one kind have in common. Its words are fixed, because its alert, in
// deploy/prometheus, says the same.
type Kind struct {
	Name     string `json:"kind"`
	Severity string `json:"severity"`        // Critical or Warning
	Means    string `json:"means"`           // what it means for customers
	Do       string `json:"do"`              // what to do
	Alert    string `json:"alert,omitempty"` // its alert; empty for none

	own bool // it is a trouble of this replica; else replicas that share an inbox all see the same
}

// Severities, as alerts have them.
const (
	Critical = "critical" // something does not work now
	Warning  = "warning"  // it may soon not work, or somebody should look at it
)

// Kinds are all kinds of troubles.
var Kinds []*Kind

func kind(name, severity, alert, means, do string) *Kind {
	k := &Kind{Name: name, Severity: severity, Means: means, Do: do, Alert: alert}
	Kinds = append(Kinds, k)
	return k
}

// ofReplica says that each replica has such troubles of its own.
func (k *Kind) ofReplica() *Kind {
	k.own = true
	return k
}

// is returns a trouble of this kind.
func (k *Kind) is(what string, about ...Subject) Trouble {
	return Trouble{What: what, Kind: *k, about: about}
}

func (t Trouble) since(at time.Time) Trouble {
	if !at.IsZero() {
		t.Since = at.UTC().Truncate(time.Second)
	}
	return t
}

// counts says how many webhooks and tenants a trouble is about; 0: nobody knows.
func (t Trouble) counts(webhooks, tenants int) Trouble {
	t.Webhooks, t.Tenants = webhooks, tenants
	return t
}

// naming says which tenants a trouble is about, or the first of so many.
func (t Trouble) naming(names []string, of int) Trouble {
	const most = 100
	t.named, t.others = names[:min(most, len(names))], len(names) > most || of > len(names)
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

// checks find all troubles. Each looks at the facts, and returns the troubles that it finds, or none. They
// run in this order; of two troubles of the same severity the first comes first.
var checks = []func(s *Status, now time.Time) []Trouble{
	storageTroubles,
	receiverTroubles,
	inboxTroubles,
	missedTroubles,
	featureTroubles,
	reconcileTroubles,
	tokenTroubles,
	callTroubles,
	questionTroubles,
	senderTroubles,
	clockTroubles,
	certificateTroubles,
	pauseTroubles,
	replicaTroubles,
	messageTroubles,
}

// goesAfter is how long something that was wrong may be over before it is no trouble any more.
const goesAfter = 30 * time.Second

// isOver says whether something that comes again and again is over: it last went wrong a while ago, and well since.
func isOver(wrong, well, now time.Time) bool { return now.Sub(wrong) >= goesAfter && well.After(wrong) }

// lately is how many minutes count as now.
const lately = metrics.Lately

func (s *Status) troubles(now time.Time) []Trouble {
	all := []Trouble{} // [] and not null
	for _, check := range checks {
		all = append(all, check(s, now)...)
	}
	all = append(all, s.unreadyTroubles(all)...)
	slices.SortStableFunc(all, func(a, b Trouble) int { return strings.Compare(a.Severity, b.Severity) })
	return all
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

// tone returns the colour of a part: that of the worst trouble about it, or about one of its ports or receivers.
func (s *Status) tone(part string) string {
	for i := range s.Troubles {
		if slices.ContainsFunc(s.Troubles[i].about, func(about Subject) bool { return about.Part == part }) {
			return s.Troubles[i].tone()
		}
	}
	return good
}

// tone returns the colour of what a trouble is about.
func (t *Trouble) tone() string {
	if t.Severity == Critical {
		return bad
	}
	return warn
}

// unreadyTroubles say that a part is not ready, unless a trouble that was found already says why.
func (s *Status) unreadyTroubles(found []Trouble) (all []Trouble) {
	for _, p := range s.Health.Parts {
		ofPart := func(about Subject) bool { return about.Part == p.Name }
		said := slices.ContainsFunc(found, func(t Trouble) bool {
			return t.Severity == Critical && slices.ContainsFunc(t.about, ofPart)
		})
		if problems := s.Health.Unready(p.Name); p.On && len(problems) > 0 && !said {
			what := p.Name + " is not ready: " + strings.Join(problems, "; ")
			all = append(all, unready[p.Name].is(what, Subject{Part: p.Name}))
		}
	}
	return all
}

const waitForReady = "Wait a few seconds. If it is still not ready, read usher's log."

var unready = map[string]*Kind{
	"outbound": kind("outbound-not-ready", Critical, "UsherDown", "Calls get an error.", waitForReady).ofReplica(),
	"gate": kind("gate-not-ready", Critical, "UsherDown",
		"Senders get 503, and changes do not reach your customers.", waitForReady).ofReplica(),
	"entitlements": kind("entitlements-not-ready", Critical, "UsherDown",
		"Questions about what tenants may use are answered 503.", waitForReady).ofReplica(),
}

// Pauses are troubles: changes do not reach customers, and most of them somebody has to end. A banner on
// every page says the same.
func pauseTroubles(s *Status, _ time.Time) (all []Trouble) {
	if s.Inbox == nil {
		return nil
	}
	for _, p := range s.Inbox.Paused {
		t := paused.is("Paused: "+p.Words(), s.pausedBy(&p)...).since(p.Since).run("usher inbox resume" + p.Flag())
		if t.which = p.Flag(); p.Tenant != "" {
			t = t.naming([]string{inbox.ShowTenant(p.Platform, p.Tenant)}, 1)
		}
		all = append(all, t)
	}
	return all
}

// pausedBy returns the receivers that get nothing because of a pause.
func (s *Status) pausedBy(p *inbox.Pause) (all []Subject) {
	if s.Gate == nil || p.Tenant != "" {
		return []Subject{ofGate("")}
	}
	for i := range s.Gate.Receivers {
		if r := &s.Gate.Receivers[i]; p.CoversReceiver(r.Name) {
			all = append(all, r.of(p.With("paused")))
		}
	}
	return all
}

var paused = kind("paused", Warning, "UsherInboxPaused",
	"Senders still get 200; their webhooks wait. Changes do not reach your customers until the pause ends.",
	"When it is no longer needed, resume the deliveries. A pause without an end lasts until somebody does.")

// Others returns the troubles without the pauses, which the page shows in a banner.
func (s *Status) Others() []Trouble {
	return slices.DeleteFunc(slices.Clone(s.Troubles), func(t Trouble) bool { return t.Kind == *paused })
}
