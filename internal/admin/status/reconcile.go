package status

import (
	"fmt"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/lane"
)

// Comparison says in words when usher was last compared with the billing service, and what was
// found; empty: it never was.
func Comparison(r *lane.Run, now time.Time) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("Last complete reconcile %s: %v", page.Ago(now.Sub(r.Ended)), r.Found)
}

// reconcileTroubles looks at the last 'usher reconcile', and at what those before have found.
func reconcileTroubles(s *Status, now time.Time) (all []Trouble) {
	if s.Inbox == nil {
		return nil
	}
	last, found := s.Inbox.stats.LastRun, s.Inbox.stats.Findings
	switch {
	case last == nil:
	case last.Failed != "":
		what := "The last reconcile failed: " + last.Failed
		all = append(all, reconcileFailed.is(what, ofGate("")).since(last.Ended))
	case last.Abandoned(now):
		what := "The last reconcile did not end"
		all = append(all, reconcileFailed.is(what, ofGate("")).since(last.Began))
	}
	var parts []string
	if n := found.Findings() - found[lane.Unlisted]; n > 0 {
		parts = append(parts, "usher and the billing service disagree about "+page.Plural(n, "tenant", "tenants"))
	}
	if n := found[lane.Unlisted]; n > 0 {
		them := "them"
		if n == 1 {
			them = "it"
		}
		tenants := page.Plural(n, "tenant", "tenants")
		parts = append(parts, tenants+" may use something here, and the billing service did not list "+them)
	}
	if len(parts) > 0 {
		all = append(all, reconcileDiffers.is(strings.Join(parts, "; "), ofGate("")).
			since(s.Inbox.stats.FindingsSince).
			run("usher inbox tenants --trouble").
			counts(0, found.Findings()))
	}
	return all
}

var (
	reconcileFailed = kind("reconcile-failed", Warning, "UsherReconcileFailed",
		"If a webhook got lost, nobody knows it yet: a customer may lack what they paid for.",
		"Read the log of the timer or job that runs it (journalctl -u usher-reconcile, kubectl logs), "+
			"and run it again ('usher help reconcile' says how).")
	reconcileDiffers = kind("reconcile-differs", Warning, "UsherReconcileDiffers",
		"usher and your software may have an old state of these tenants: they may lack what they paid for, "+
			"or use what they do not pay for.",
		"Run 'usher reconcile' again to see what differs ('usher help reconcile' says how). "+
			"A twin is usually a wrong platform in your list: correct it. Add --apply to take in the others. "+
			"An unlisted tenant may be a cancellation that was lost: then list it with \"features\":[]. "+
			"To stop reporting a tenant that is right as it is: 'usher inbox dismiss --tenant TENANT'.")
)
