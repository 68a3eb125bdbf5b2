package status

import (
	"fmt"
	"strings"
	"time"

	"usher/internal/admin/page"
)

// missedTroubles say what usher may have missed, until it is made good.
func missedTroubles(s *Status, _ time.Time) (all []Trouble) {
	o := &s.Missed
	if o.Tenants == 0 {
		return nobodysTroubles(s)
	}
	var names []string
	for _, t := range o.First {
		names = append(names, page.TenantName(t.Platform, t.Tenant))
	}
	what := "usher answered webhooks of " + page.FirstOf(names, o.Tenants)
	if o.More {
		what += ", and of others whose names it could not keep,"
	}
	what += " with a 5xx" + between(o.Since, o.Last)
	of := missed
	if s.Inbox == nil {
		of = missedInMemory
	}
	trouble := of.is(what+", and they have not come again", ofGate("")).
		since(o.Since).counts(0, o.Tenants).naming(names, o.Tenants)
	trouble.bare = what // once it is over, they have
	if s.Inbox != nil {
		trouble = trouble.link("/tenants").run("usher inbox tenants --trouble")
	} else {
		trouble = trouble.link("/webhooks?state=failed")
	}
	return append([]Trouble{trouble}, nobodysTroubles(s)...)
}

// nobodysTroubles say what usher may have missed, and nobody knows whose it is.
func nobodysTroubles(s *Status) (all []Trouble) {
	o := &s.Missed
	if u := o.Unnamed; u.Count > 0 {
		of := unnamed
		if s.Inbox == nil {
			of = unnamedInMemory
		}
		what := fmt.Sprintf("usher answered %s with a 5xx before it knew the tenant%s",
			page.Plural(u.Count, "webhook", "webhooks"), between(u.Since, u.Last))
		all = append(all, of.is(what, ofGate("")).since(u.Since).link("/dismiss").counts(u.Count, 0))
	}
	if n := len(o.Outages); n > 0 {
		last, first := o.Outages[0], o.Outages[n-1]
		what := strings.TrimSpace(between(last.From, last.To)) +
			" no gate was ready to take webhooks, as far as this inbox knows"
		if n > 1 {
			what += ", and " + page.Plural(n-1, "time", "times") + " before that"
		}
		all = append(all, outage.is(capitalize(what), ofGate("")).since(first.From).link("/dismiss"))
	}
	return all
}

// Dismissible says in words what somebody may say is dealt with, and when the last of it ended.
func (s *Status) Dismissible() (until time.Time, found []string) {
	until = s.Missed.Unnamed.Last
	for _, o := range s.Missed.Outages {
		if until.Before(o.To) {
			until = o.To
		}
	}
	for _, t := range nobodysTroubles(s) {
		found = append(found, t.What)
	}
	return until, found
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

// Reconcile needs an inbox.
var (
	missed = kind("missed", Critical, "UsherWebhooksMissed", missedMeans,
		reconcileOr+"the webhooks from its webhook log. "+stopReporting)
	missedInMemory = kind("missed", Critical, "UsherWebhooksMissed", missedMeans,
		"Resend the webhooks from the webhook log of the billing service. "+stopReporting+
			" With USHER_WEBHOOK_INBOX usher would keep such webhooks, and 'usher reconcile' could find what was lost.")
	unnamed         = kind("missed-unnamed", Critical, "UsherOutage", unnamedMeans, reconcileOr+resendAll+tooMany)
	unnamedInMemory = kind("missed-unnamed", Critical, "UsherOutage", unnamedMeans,
		"Resend the webhooks of that time from the webhook log of the billing service, then run "+
			"'usher inbox dismiss'."+tooMany)
	outage = kind("outage", Critical, "UsherOutage",
		"Webhooks of that time may be changes that nobody sends again: a load balancer answered in the place of "+
			"usher, or nobody did. If the inbox is a restored backup, it does not have the webhooks that usher "+
			"took in after the first of these times.", reconcileOr+resendAll)
)

const (
	missedMeans = "Each may be a change that nobody sends again: these tenants may not get what they paid for, or " +
		"keep what they no longer pay for."
	unnamedMeans  = "Each may be a change that nobody sends again. usher does not know of which tenants they were."
	reconcileOr   = "Reconcile with the billing service ('usher help reconcile' says how), or resend "
	resendAll     = "the webhooks of that time from its webhook log, then run 'usher inbox dismiss'."
	tooMany       = " If it happens again, raise USHER_WEBHOOK_MAX_INFLIGHT."
	stopReporting = "To stop reporting a tenant that you have checked: 'usher inbox forget TENANT'."
)
