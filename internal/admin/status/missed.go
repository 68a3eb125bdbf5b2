package status

import (
	"fmt"
	"slices"
	"time"

	"usher/internal/view"
)

// missed says in which time usher may have missed webhooks, until a catch-up or a reconcile has made good. Without an
// inbox nobody can know that: then it lasts for some minutes, and is in the history.
func missed(s *Status, _ time.Time) []Trouble {
	if s.Inbox == nil {
		return s.failedLately()
	}
	m := &s.Missed
	if m.From.IsZero() {
		return nil
	}
	what := "No gate was ready to take webhooks"
	if m.Webhooks > 0 {
		what = "usher answered " + view.Plural(m.Webhooks, "webhook", "webhooks") + " with a 5xx"
	}
	return wrong(what+between(m.From, m.To), ofGate("")).since(m.From).only()
}

func (s *Status) failedLately() []Trouble {
	down := slices.ContainsFunc(s.Troubles, func(t Trouble) bool { return t.Kind == receiverDown })
	if s.Gate == nil || s.failed() == 0 || down { // that says how many failed
		return nil
	}
	what := fmt.Sprintf("usher answered %s with a 5xx in the last %d minutes", view.Plural(s.failed(), "webhook", "webhooks"), lately)
	return wrong(what, ofGate("")).link("/webhooks?state=failed").only()
}

// failed is how many webhooks got a 5xx lately, but for questions.
func (s *Status) failed() int { return decided(s.Gate, "failed") - s.Gate.failedQuestions() }

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
