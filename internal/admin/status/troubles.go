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
// beside a red box.
type Trouble struct {
	What string `json:"what"` // what is wrong
	Kind
	Run     string    `json:"run,omitempty"`     // the command for Do
	Since   time.Time `json:"since,omitzero"`    // zero: nobody knows
	Replica string    `json:"replica,omitempty"` // whose it is, if it is another one's
	Link    string    `json:"-"`                 // address of the page that shows more; empty for none

	about []Subject
	which string // tells troubles of the same kind about the same subject apart
	// bare is what messages and the history have instead of What: without what somebody else has written.
	bare  string
	named []string // the tenants that it names, as inbox.ShowTenant writes them
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

// wrong returns a trouble. Its kind is that of the row of Kinds that finds it.
func wrong(what string, about ...Subject) Trouble { return Trouble{What: what, about: about} }

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
	t.named = names[:min(100, len(names))]
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

// judge finds all troubles, the worst first.
func (s *Status) judge(now time.Time) {
	s.Troubles = []Trouble{} // [] and not null
	for _, k := range Kinds {
		for _, t := range k.find(s, now) {
			said := t.Kind
			t.Kind = k
			t.Severity, t.Means, t.Do = cmp.Or(said.Severity, k.Severity), cmp.Or(said.Means, k.Means), cmp.Or(said.Do, k.Do)
			s.Troubles = append(s.Troubles, t)
		}
	}
	for i := range s.Elsewhere {
		if t := elsewhere(&s.Elsewhere[i]); !slices.ContainsFunc(s.Troubles, func(o Trouble) bool { return o.key() == s.Elsewhere[i].About }) {
			s.Troubles = append(s.Troubles, t)
		}
	}
	slices.SortStableFunc(s.Troubles, func(a, b Trouble) int { return strings.Compare(a.Severity, b.Severity) })
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

// notReady says that a part is not ready, unless a trouble that was found already says why.
func notReady(s *Status, _ time.Time) (all []Trouble) {
	for _, p := range s.Health.Parts {
		problems := s.Health.Unready(p.Name)
		said := slices.ContainsFunc(s.Troubles, func(t Trouble) bool {
			return t.Severity == Critical && slices.ContainsFunc(t.about, func(about Subject) bool { return about.Part == p.Name })
		})
		if p.On && len(problems) > 0 && !said {
			all = append(all, wrong(p.Name+" is not ready: "+strings.Join(problems, "; "), Subject{Part: p.Name}))
		}
	}
	return all
}

// Pauses are troubles: changes do not reach customers, and most of them somebody has to end. A banner on
// every page says the same.
func paused(s *Status, _ time.Time) (all []Trouble) {
	if s.Inbox == nil {
		return nil
	}
	for _, p := range s.Inbox.Paused {
		t := wrong("Paused: "+p.Words(), s.pausedBy(&p)...).since(p.Since).run("usher inbox resume" + p.Flag())
		if t.which = p.Flag(); p.Tenant != "" {
			t = t.naming([]string{inbox.ShowTenant(p.Platform, p.Tenant)})
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

// Others returns the troubles without the pauses, which the page shows in a banner.
func (s *Status) Others() []Trouble {
	return slices.DeleteFunc(slices.Clone(s.Troubles), func(t Trouble) bool { return t.Name == pausedKind })
}
