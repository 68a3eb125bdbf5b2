package status

import (
	"fmt"
	"slices"
	"time"

	"usher/internal/admin/page"
)

// missed says in which time usher may have missed webhooks, until a catch-up or a reconcile has made good. Without an
// inbox nobody can know that: then it lasts for some minutes, and is in the history.
func missed(s *Status, now time.Time) (all []Trouble) {
	if s.Inbox == nil {
		return s.failedLately()
	}
	o := &s.Missed
	if from, to := earlier(o.Since, o.Unnamed.Since), later(o.Last, o.Unnamed.Last); !from.IsZero() {
		all = append(all, wrong("usher answered webhooks with a 5xx"+between(from, to), ofGate("")).since(from))
	}
	for _, out := range o.Outages {
		t := wrong("No gate was ready to take webhooks"+between(out.From, out.To), ofGate("")).since(out.From)
		t.which = "outage"
		all = append(all, t)
		break // the newest
	}
	return all
}

func (s *Status) failedLately() []Trouble {
	down := slices.ContainsFunc(s.Troubles, func(t Trouble) bool { return t.Name == receiverDown })
	if s.Gate == nil || s.failed() == 0 || down { // that says how many failed
		return nil
	}
	what := fmt.Sprintf("usher answered %s with a 5xx in the last %d minutes", page.Plural(s.failed(), "webhook", "webhooks"), lately)
	return wrong(what, ofGate("")).link("/webhooks?state=failed").only()
}

// failed is how many webhooks got a 5xx lately, but for questions.
func (s *Status) failed() int { return decided(s.Gate, "failed") - s.Gate.failedQuestions() }

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// between says from when to when, to the second.
func between(from, to time.Time) string {
	from, to = from.UTC(), to.UTC()
	switch first, last := from.Format(time.DateTime), to.Format(time.DateTime); {
	case first == last:
		return " at " + first + " UTC"
	case from.Format(time.DateOnly) == to.Format(time.DateOnly):
		return " from " + first + " to " + to.Format(time.TimeOnly) + " UTC"
	default:
		return " from " + first + " to " + last + " UTC"
	}
}

// Dismissible says in words what somebody may say is dealt with, and when the last of it ended.
func (s *Status) Dismissible() (until time.Time, found []string) {
	until = s.Missed.Unnamed.Last
	for _, o := range s.Missed.Outages {
		until = later(until, o.To)
	}
	if !until.IsZero() {
		for _, t := range missed(s, until) {
			found = append(found, t.What)
		}
	}
	return until, found
}
