package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/receiver"
)

// Receiver is the state of a receiver.
type Receiver struct {
	Name string `json:"name"`
	// Platforms says whose webhooks it gets; if empty, those of all platforms that no other receiver has.
	Platforms []string      `json:"platforms"`
	Address   string        `json:"address"`
	LastTry   string        `json:"last_try,omitempty"` // see metrics.RecentTries.Last
	State     string        `json:"state"`              // in words; from the troubles
	Tone      string        `json:"tone"`               // good, warn or bad; empty: nobody knows
	Waiting   int           `json:"waiting"`            // webhooks in the inbox
	Oldest    time.Duration `json:"oldest"`
	Parked    int           `json:"parked"`
	Paused    bool          `json:"paused"` // somebody has paused its deliveries

	down    bool // it takes no webhooks
	failing int  // the tenants whose webhooks it does not take
	tries   metrics.RecentTries
	since   time.Time // since when; zero: not known
	last    time.Time // when it last took something; zero: never
}

// newReceiver collects what is known about a receiver. box is nil without an inbox.
func newReceiver(r *receiver.Receiver, tries metrics.RecentTries, box *Inbox) Receiver {
	s := Receiver{
		Name:      r.Name,
		Platforms: append([]string{}, r.Platforms...),
		Address:   r.Address(),
		LastTry:   tries.Last,
		tries:     tries,
		since:     tries.Since,
	}
	if box == nil {
		s.down = tries.OK == 0 && tries.Last != "" && tries.Last != "ok" || tries.InARow >= manyInARow
		return s
	}
	if stats, ok := box.stats.Receivers[r.Name]; ok {
		// What waits says more than the last try, which may have been that of any tenant. The
		// rule is that of deliveries.
		s.Waiting = stats.Pending
		s.Oldest = stats.Oldest
		s.Parked = stats.Parked
		s.since = stats.FailingSince
		s.last = stats.LastAccepted
		s.down, s.failing = stats.Down(), stats.NotAccepted
	}
	s.Paused = slices.ContainsFunc(box.Paused, func(p inbox.Pause) bool { return p.CoversReceiver(r.Name) })
	return s
}

// manyInARow failures, whichever the tenants, mean that the receiver is down, and not that it does not take
// those of some tenants. With an inbox the courier decides that.
const manyInARow = 10

// quiet is what the line of a receiver says without a trouble, and its tone. One failed try is none, but it
// does not take webhooks either.
func (r *Receiver) quiet() (words, tone string) {
	switch elsewhere := r.Waiting == 0 && r.last.After(r.tries.Since); {
	case r.tries.Last == "":
		return "has not been tried yet", ""
	case r.tries.Last == "ok", elsewhere: // another replica has delivered what failed here
		return "takes webhooks", good
	default:
		return "did not take the last webhook", ""
	}
}

// failureWords describes how a receiver fails that takes nothing.
func failureWords(tries metrics.RecentTries) string {
	switch tries.LastFailed {
	case "error":
		return "can't be reached"
	case "timeout":
		return "does not answer in time"
	case "status":
		return fmt.Sprintf("answers %d to everything", tries.LastStatus)
	default: // other replicas have tried it
		return "takes nothing"
	}
}

const (
	// patience is how long a webhook may wait before that is a trouble; shortPatience, if the last try failed.
	patience      = time.Minute
	shortPatience = 3 * time.Second
)

// receiverTroubles are those of the receivers, one for each. They name the receiver if it takes nothing, and
// the tenants if it takes the webhooks of others.
func receiverTroubles(s *Status, now time.Time) (all []Trouble) {
	if s.Gate == nil {
		return nil
	}
	for i := range s.Gate.Receivers {
		r := &s.Gate.Receivers[i]
		var found []Trouble
		switch {
		case r.Paused: // pauseTroubles say so
			continue
		case s.Inbox == nil:
			found = s.passThrough(r)
		default:
			found = s.deliveries(r)
		}
		silent := now.Sub(r.tries.Unanswered)
		if len(found) == 0 && !r.tries.Unanswered.IsZero() && silent >= shortPatience {
			words := "has not answered for " + page.Span(silent.Truncate(time.Second))
			found = []Trouble{unanswered.is(s.Gate.nameOf(r)+" "+words, r.of(words)).since(r.tries.Unanswered)}
		}
		all = append(all, found...)
	}
	return all
}

// deliveries returns the trouble of a receiver behind an inbox.
func (s *Status) deliveries(r *Receiver) []Trouble {
	name := s.Gate.nameOf(r)
	waiting := page.Plural(r.Waiting, "webhook waits", "webhooks wait")
	waits := fmt.Sprintf("%s, the oldest for %s", waiting, page.Span(r.Oldest.Round(time.Second)))
	switch {
	case r.down:
		fails, last := failureWords(r.tries), ""
		held := slices.DeleteFunc(slices.Clone(s.Inbox.HeldUp), func(h HeldUp) bool {
			return h.Receiver != r.Name || h.Paused || !h.Down
		})
		if len(held) > 0 {
			last = quoted("the last try", held[0].Answer)
		}
		if slices.ContainsFunc(held, func(h HeldUp) bool { return h.status != held[0].status }) {
			fails, last = "takes nothing", "; the last tries: "+answersOf(held)
		}
		nothing := name + " " + fails + ": nothing is delivered, "
		t := receiverFails.is(nothing+waits+last, r.of(fails)).
			since(r.since).
			link("/webhooks?state=waiting").
			counts(r.Waiting, r.failing)
		t.bare = nothing + waiting
		return []Trouble{t}
	case r.Oldest <= shortPatience:
	case r.failing > 0:
		return s.failingTenants(r)
	case r.Oldest > patience && len(s.Inbox.Paused) == 0: // with a pause, the oldest may be one that is paused
		t := receiverSlow.is(name+" is slow to take webhooks: "+waits, r.of("is slow")).
			link("/webhooks?state=waiting").
			counts(r.Waiting, 0)
		t.bare = name + " is slow to take webhooks: " + waiting
		return []Trouble{t}
	}
	return nil
}

// failingTenants returns the trouble of a receiver that does not take some tenants' webhooks.
func (s *Status) failingTenants(r *Receiver) []Trouble {
	var held []HeldUp
	paused := false
	for i := range s.Inbox.HeldUp {
		switch h := s.Inbox.HeldUp[i]; {
		case h.Receiver != r.Name || h.Down:
		case h.Paused:
			paused = true
		default:
			held = append(held, h)
		}
	}
	if paused && len(held) == 0 {
		return nil
	}
	var since time.Time
	who, last := "some tenants", ""
	var names []string
	waiting := 0
	for _, h := range held {
		names = append(names, h.Name())
		waiting += 1 + h.Behind
	}
	if len(held) > 0 {
		since = held[0].Since
		who, last = namesAndAnswers(held)
	}
	name, tenants := s.Gate.nameOf(r), page.Plural(r.failing, "tenant", "tenants")
	const butNot = "takes webhooks, but not those of "
	trouble := tenantsFail.is(name+" "+butNot+who, r.of(butNot+tenants)).quoting("the last answer", last)
	trouble.turned = true // the receiver may have been down until a moment ago
	if !since.IsZero() && r.last.Before(since) {
		trouble = onlyTenantsFail.is(name+" does not take the webhooks of "+who+", and has taken no others since",
			r.of("fails for "+tenants+", and has taken no others since")).quoting("the last try", last)
	}
	if len(names) > 0 {
		trouble.bare = strings.Replace(trouble.bare, who, page.FirstFew(names), 1)
	}
	trouble = trouble.counts(waiting, r.failing).naming(names, r.failing)
	if r.Oldest > longWait {
		trouble.Severity = Critical
	}
	return []Trouble{trouble.since(since).link("/webhooks?state=waiting").run("usher inbox ls --state waiting")}
}

// namesAndAnswers returns the first tenants, and their last answer. If they got different ones, each name has
// its own, and last is empty.
func namesAndAnswers(held []HeldUp) (who, last string) {
	if slices.ContainsFunc(held, func(h HeldUp) bool { return h.Answer != held[0].Answer }) {
		return answersOf(held), ""
	}
	var names []string
	for i := range held {
		names = append(names, held[i].Name())
	}
	return page.FirstFew(names), held[0].Answer
}

// answersOf returns the first tenants, each with its last answer.
func answersOf(held []HeldUp) string {
	var both []string
	for i := range held {
		both = append(both, fmt.Sprintf("%s (%s)", held[i].Name(), page.Excerpt(held[i].Answer)))
	}
	return page.FirstFew(both)
}

// longWait is how long a webhook may wait before that is worth waking somebody up for; the alert
// UsherWebhooksWait goes by it, too.
const longWait = 10 * time.Minute

const tenantsHurt = "These tenants do not get what they paid for, or keep what they no longer pay for. "

var (
	receiverFails = kind("receiver-down", Critical, "UsherReceiverFails",
		"No change reaches your customers: they do not get what they paid for, or keep what they no longer "+
			"pay for. Nothing is lost.",
		"Fix the receiver, or the way to it: usher then delivers what waits by itself, in order.")
	unanswered = kind("receiver-silent", Warning, "",
		"While usher waits for the answer, the webhooks behind this one wait, too.",
		"Find out what the receiver is doing. When its answer is late, or does not come, "+
			"usher tries again by itself.").ofReplica()
	receiverSlow = kind("receiver-slow", Critical, "UsherWebhooksWait",
		"Changes reach your customers late. Nothing is lost.",
		"Find out why the receiver is slow; usher delivers what waits by itself, in order. "+
			"'usher inbox ls' shows which webhook holds up which tenant, and what the receiver answered.")
	tenantsFail = kind("tenants-fail", Warning, "UsherWebhooksWait", tenantsHurt+"Others' webhooks are delivered.",
		"Find out why the receiver does not take them: 'usher inbox ls' shows what it answered. "+
			"usher tries again by itself.")
	onlyTenantsFail = kind("tenants-fail", Warning, "UsherWebhooksWait",
		tenantsHurt+"Nothing else was delivered since: perhaps the receiver takes nothing at all.",
		"Find out why the receiver does not take them: 'usher inbox ls' shows what it answered. "+
			"usher tries again by itself.")
)

// nameOf returns the subject of a sentence about a receiver. Its name is left out if there is only one.
func (g *Gate) nameOf(r *Receiver) string {
	if len(g.Receivers) > 1 {
		return "The receiver " + r.Name + " (" + r.Address + ")"
	}
	return "The receiver " + r.Address
}

// passThrough returns the trouble of a receiver without an inbox.
func (s *Status) passThrough(r *Receiver) []Trouble {
	n := decided(s.Gate, "failed")
	if !r.down || n == 0 {
		return nil
	}
	fails := failureWords(r.tries)
	what := fmt.Sprintf("%s %s: %s in the last %d minutes",
		s.Gate.nameOf(r), fails, page.Plural(n, "webhook failed", "webhooks failed"), lately)
	return []Trouble{failing.is(what, r.of(fails)).since(r.since).link("/webhooks?state=failed").counts(n, 0)}
}

var failing = kind("receiver-down", Critical, "UsherWebhooksMissed",
	"No change reaches your customers, and the sender might not send it again.",
	"Fix the receiver, or the way to it, then resend the failed webhooks from the webhook log of the billing "+
		"service. With USHER_WEBHOOK_INBOX usher would keep them.")
