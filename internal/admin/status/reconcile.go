package status

import (
	"fmt"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// Comparison says in words when usher was last compared with the billing service, and what was found; empty: it never was.
func Comparison(r *inbox.Run, now time.Time) string {
	if r == nil {
		return ""
	}
	s := &r.Summary
	parts := []string{page.Plural(s.Equal, "tenant equal", "tenants equal")}
	for _, p := range []struct {
		n    int
		word string
	}{
		{s.Applied, "differed and were taken in"}, {s.Left.Differs, "differ"}, {s.Left.Missing, "missing here"}, {s.Left.Twin, "on another platform here"},
		{s.Changed, "changed meanwhile"}, {s.Absent, "only known here"},
	} {
		if p.n > 0 {
			parts = append(parts, page.Count(p.n)+" "+p.word)
		}
	}
	return fmt.Sprintf("Compared with the billing service %s: %s", page.Ago(now.Sub(r.Ended)), strings.Join(parts, ", "))
}

// reconcileTroubles looks at the last 'usher reconcile', and at the last complete one.
func reconcileTroubles(s *Status, now time.Time) (all []Trouble) {
	if s.Inbox == nil {
		return nil
	}
	last, complete := s.Inbox.stats.LastRun, s.Inbox.stats.CompleteRun
	switch {
	case last == nil:
	case last.Failed != "":
		all = append(all, reconcileFailed.is("The last comparison with the billing service failed: "+last.Failed).since(last.Ended).run("usher inbox actions"))
	case last.Killed(now):
		all = append(all, reconcileFailed.is("The last comparison with the billing service did not end").since(last.Began).run("usher inbox actions"))
	}
	if complete != nil && complete.Summary.Left.Count() > 0 {
		n := complete.Summary.Left.Count()
		all = append(all, reconcileDiffers.is(page.Plural(n, "tenant is", "tenants are")+" not what the billing service says, and nobody has applied that").since(complete.Ended))
	}
	return all
}

var (
	reconcileFailed = kind(Warning, "UsherReconcileFailed",
		"If a webhook got lost, nobody knows it yet: a customer may lack what they paid for.",
		"Read the log of the timer or job that runs it, and run it again ('usher help reconcile' says how).")
	reconcileDiffers = kind(Warning, "UsherReconcileDiffers",
		"For these tenants usher and your software go by an older state: they may lack what they paid for, or use what they do not pay for.",
		"Run the comparison again to see what differs, and with --apply to take it in ('usher help reconcile' says how).")
)
