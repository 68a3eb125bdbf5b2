package status

import (
	"slices"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/view"
)

// decided returns how many webhooks got this decision lately.
func decided(g *Gate, decision string) int {
	return metrics.Sum(g.Decisions, lately, slices.Index(metrics.Decisions[:], decision))
}

func (g *Gate) failedQuestions() int {
	return metrics.Sum(g.Decisions, lately, metrics.FailedQuestions)
}

// questionsFail says that questions to the receiver, such as at a checkout, got no answer, from the first one on.
func questionsFail(s *Status, now time.Time) []Trouble {
	if s.Gate == nil {
		return nil
	}
	q := s.Gate.Questions
	if q.Count == 0 || now.Sub(q.Last) >= metrics.QuestionsMatter {
		return nil
	}
	what := view.Plural(q.Count, "question of the billing service was", "questions of the billing service were") +
		" not answered: " + q.Why
	return wrong(what, ofGate("")).since(q.Since).link("/webhooks?state=failed").only()
}

// sendersRejected says that every webhook fails the check of its sender, from the third one on. One that failed it is
// normal: anybody can send something.
func sendersRejected(s *Status, now time.Time) []Trouble {
	if s.Gate == nil {
		return nil
	}
	f := s.Gate.FailedChecks
	if f.Count < metrics.SomeFailed || now.Sub(f.Last) > 15*time.Minute {
		return nil
	}
	what := "Every webhook since " + f.Since.UTC().Format(time.TimeOnly) + " UTC failed the check of its sender: " + view.Count(f.Count)
	return wrong(what, ofGate("")).since(f.Since).link("/webhooks?state=rejected").only()
}

// clocksDiffer compares the clocks of this machine and of the inbox's database.
func clocksDiffer(s *Status, _ time.Time) []Trouble {
	const much = 5 * time.Second
	if s.Inbox == nil || s.Inbox.ClockAhead.Abs() <= much {
		return nil
	}
	way := "ahead of"
	if s.Inbox.ClockAhead < 0 {
		way = "behind"
	}
	by := view.Span(s.Inbox.ClockAhead.Abs().Round(time.Second))
	return wrong("The clock of this machine is "+by+" "+way+" the database's", ofGate("")).only()
}

// certificateEnds looks at the gate's certificate, from a week before its end.
func certificateEnds(s *Status, now time.Time) []Trouble {
	if s.Gate == nil || s.Gate.CertificateEnds.IsZero() || s.Gate.CertificateEnds.Sub(now) >= 7*24*time.Hour {
		return nil
	}
	const what = "The TLS certificate of the webhook gate"
	left := s.Gate.CertificateEnds.Sub(now)
	t := wrong(what+" expires in "+view.Span(left.Round(time.Second)), ofGate(""))
	if left <= 0 {
		t = wrong(what+" has expired", ofGate("")).since(s.Gate.CertificateEnds)
	}
	if left < 24*time.Hour {
		t = t.severity(Critical)
	}
	return t.only()
}
