package status

import (
	"fmt"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// missedTroubles say what usher may have missed, until it is made good.
func missedTroubles(s *Status, _ time.Time) (all []Trouble) {
	o := &s.Missed
	missed, unnamed := missed, unnamed
	if s.Inbox == nil {
		missed, unnamed = missedInMemory, unnamedInMemory
	}
	if o.Tenants > 0 {
		var names []string
		for _, t := range o.First {
			names = append(names, page.TenantName(t.Platform, t.Tenant))
		}
		tenants := page.FirstOf(names, o.Tenants)
		if o.More {
			tenants += ", and of others whose names it could not keep,"
		}
		what := "usher answered webhooks of " + tenants + " with a 5xx" + between(o.Since, o.Last)
		trouble := missed.is(what+", and they have not come again", ofGate("")).
			since(o.Since).link(s.missedLink()).counts(0, o.Tenants).naming(names, o.Tenants)
		trouble.bare = what // once it is over, they have
		if s.Inbox != nil {
			trouble = trouble.run("usher inbox tenants --trouble")
		}
		all = append(all, trouble)
	}
	if u := o.Unnamed; u.Count > 0 {
		what := fmt.Sprintf("usher answered %s with a 5xx before it knew the tenant%s",
			page.Plural(u.Count, "webhook", "webhooks"), between(u.Since, u.Last))
		all = append(all, unnamed.is(what, ofGate("")).since(u.Since).link("/dismiss").counts(u.Count, 0))
	}
	if n := len(o.Outages); n > 0 {
		last, more := o.Outages[0], ""
		if n > 1 {
			more = ", and " + page.Plural(n-1, "time", "times") + " before that"
		}
		what := strings.TrimSpace(between(last.From, last.To) +
			" no gate was ready to take webhooks, as far as this inbox knows" + more)
		if last.From.After(last.To) {
			what = wentBack(last) + ": nobody knows for how long no gate was ready to take webhooks" + more
		}
		first := o.Outages[n-1]
		all = append(all, outage.is(capitalize(what), ofGate("")).since(earlier(first.From, first.To)).link("/dismiss"))
	}
	return all
}

// Dismissible says in words what somebody may say is dealt with, and when the last of it ended.
func (s *Status) Dismissible() (until time.Time, found []string) {
	o := &s.Missed
	for n, g := range o.Outages {
		if until.Before(g.To) {
			until = g.To
		}
		if n < maxShownOutages && g.From.After(g.To) {
			found = append(found, wentBack(g))
		} else if n < maxShownOutages {
			found = append(found, "no gate was ready"+between(g.From, g.To))
		}
	}
	if more := len(o.Outages) - maxShownOutages; more > 0 {
		found = append(found, "and "+page.Plural(more, "time", "times")+" before that")
	}
	if u := o.Unnamed; u.Count > 0 {
		if until.Before(u.Last) {
			until = u.Last
		}
		webhooks := page.Plural(u.Count, "webhook", "webhooks")
		found = append(found, webhooks+" got a 5xx before usher knew the tenant"+between(u.Since, u.Last))
	}
	return until, found
}

// wentBack is an outage of which nobody knows how long it was.
func wentBack(o inbox.Outage) string {
	return fmt.Sprintf("the clock went back %s since the last run of usher,%s",
		page.Span(o.From.Sub(o.To)), between(o.To, o.To))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// maxShownOutages is how many outages are named before somebody dismisses them.
const maxShownOutages = 5

// missedLink is the page that shows the tenants.
func (s *Status) missedLink() string {
	if s.Inbox == nil {
		return "/webhooks?state=failed"
	}
	return "/tenants"
}

// between says from when to when, to the second.
func between(from, to time.Time) string {
	if from.IsZero() {
		return ""
	}
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

const mayBeLost = "Each may be a change that nobody sends again: these tenants may not get what they paid " +
	"for, or keep what they no longer pay for."

var (
	missed = kind("missed", Critical, "UsherWebhooksMissed", mayBeLost,
		"Compare with the billing service ('usher help reconcile' says how), or resend the webhooks from its "+
			"webhook log. To stop reporting a tenant that you have checked: 'usher inbox forget TENANT'.")
	missedInMemory = kind("missed", Critical, "UsherWebhooksMissed", mayBeLost,
		"Fix the receiver, then resend the webhooks from the webhook log of the billing service. "+
			"To stop reporting a tenant that you have checked: 'usher inbox forget TENANT'. "+
			"With USHER_WEBHOOK_INBOX usher would keep them.")
	unnamed = kind("missed-unnamed", Critical, "UsherOutage",
		"Each may be a change that nobody sends again, and nobody knows whose.",
		"Compare with the billing service ('usher help reconcile' says how), or resend the webhooks of that "+
			"time from its webhook log, then run 'usher inbox dismiss'. "+
			"If it happens again, raise USHER_WEBHOOK_MAX_INFLIGHT.")
	unnamedInMemory = kind("missed-unnamed", Critical, "UsherOutage",
		"Each may be a change that nobody sends again, and nobody knows whose.",
		"Resend the webhooks of that time from the webhook log of the billing service, then run 'usher inbox "+
			"dismiss'. If it happens again, raise USHER_WEBHOOK_MAX_INFLIGHT.")
	outage = kind("outage", Critical, "UsherOutage",
		"Webhooks of that time may be changes that nobody sends again: a load balancer has answered for "+
			"usher, or nobody has. If the inbox is a restored backup, it ends at the first of these times, "+
			"and what was taken in later is not in it.",
		"Compare with the billing service ('usher help reconcile' says how), or resend the webhooks of that "+
			"time from its webhook log, then run 'usher inbox dismiss'.")
)
