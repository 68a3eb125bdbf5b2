package status

import (
	"fmt"
	"slices"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/inbox"
	"usher/internal/receiver"
	"usher/internal/view"
)

// newReceiver collects what is known about a receiver. box is nil without an inbox.
func newReceiver(r *receiver.Receiver, tries metrics.RecentTries, box *Inbox) Receiver {
	s := Receiver{
		Name:       r.Name,
		Platforms:  append([]string{}, r.Platforms...),
		Address:    r.Address(),
		LastTry:    tries.Last,
		tries:      tries,
		deliveries: tries.Deliveries,
		since:      tries.Since,
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

// receiversDown finds the receivers that take nothing, from anybody.
func receiversDown(s *Status, _ time.Time) (all []Trouble) {
	for _, r := range s.receivers() {
		n := s.failed()
		switch fails := failureWords(r.tries); {
		case !r.down:
		case s.Inbox != nil:
			all = append(all, s.takesNothing(r))
		case n > 0:
			what := fmt.Sprintf("%s %s: %s in the last %d minutes", s.Gate.nameOf(r), fails, view.Plural(n, "webhook failed", "webhooks failed"), lately)
			all = append(all, wrong(what, r.of(fails)).since(r.since).link("/webhooks?state=failed"))
		}
	}
	return all
}

// receivers returns those to which usher delivers. One that is paused is not among them: the pause is said.
func (s *Status) receivers() (all []*Receiver) {
	if s.Gate == nil {
		return nil
	}
	for i := range s.Gate.Receivers {
		if r := &s.Gate.Receivers[i]; !r.Paused {
			all = append(all, r)
		}
	}
	return all
}

// takesNothing is the trouble of a receiver behind an inbox.
func (s *Status) takesNothing(r *Receiver) Trouble {
	fails, last, status := failureWords(r.tries), "", 0
	for _, h := range s.Inbox.HeldUp {
		switch {
		case h.Receiver != r.Name || h.Paused || !h.Down:
		case last == "":
			last, status = h.Answer, h.Status
		case h.Status != status:
			fails = "takes nothing"
		}
	}
	nothing := s.Gate.nameOf(r) + " " + fails + ": nothing is delivered, "
	t := wrong(nothing+r.waits()+quoted("the last try", last), r.of(fails)).since(r.since).link("/webhooks?state=waiting")
	t.bare = nothing + view.Plural(r.Waiting, "webhook waits", "webhooks wait")
	return t
}

// waits says how many webhooks wait, and for how long.
func (r *Receiver) waits() string {
	return fmt.Sprintf("%s, the oldest for %s", view.Plural(r.Waiting, "webhook waits", "webhooks wait"), view.Span(r.Oldest.Round(time.Second)))
}

// webhooksWait finds the receivers that take some tenants' webhooks and not others', or are slow, or silent.
func webhooksWait(s *Status, now time.Time) (all []Trouble) {
	for _, r := range s.receivers() {
		t, silent := Trouble{}, now.Sub(r.tries.Unanswered)
		switch {
		case r.down:
			continue
		case s.Inbox != nil && r.Oldest > shortPatience && r.failing > 0:
			t = s.failingTenants(r)
		case s.Inbox != nil && r.Oldest > patience && len(s.Inbox.Paused) == 0: // else the oldest may be one that is paused
			t = wrong(s.Gate.nameOf(r)+" is slow to take webhooks: "+r.waits(), r.of("is slow")).severity(Critical)
			t.bare = s.Gate.nameOf(r) + " is slow to take webhooks"
		}
		if t.What == "" && !r.tries.Unanswered.IsZero() && silent >= shortPatience {
			words := "has not answered for " + view.Span(silent.Truncate(time.Second))
			t = wrong(s.Gate.nameOf(r)+" "+words, r.of(words)).since(r.tries.Unanswered)
		}
		if t.What == "" {
			continue
		}
		if s.Inbox != nil && r.Oldest > longWait {
			t = t.severity(Critical)
		}
		all = append(all, t.link("/webhooks?state=waiting").run("usher inbox ls --state waiting"))
	}
	return all
}

// longWait is how long a webhook may wait before that is worth waking somebody up for.
const longWait = 10 * time.Minute

// failingTenants is the trouble of a receiver that does not take some tenants' webhooks; none if all of these are paused.
func (s *Status) failingTenants(r *Receiver) Trouble {
	var since time.Time
	var names []string
	who, last, paused := "some tenants", "", false
	for _, h := range s.Inbox.HeldUp {
		switch {
		case h.Receiver != r.Name || h.Down:
		case h.Paused:
			paused = true
		default:
			if names = append(names, h.Name()); len(names) == 1 {
				since, last = h.Since, h.Answer
			}
		}
	}
	if paused && len(names) == 0 {
		return Trouble{}
	}
	if len(names) > 0 {
		who = view.FirstFew(names)
	}
	name, tenants := s.Gate.nameOf(r), view.Plural(r.failing, "tenant", "tenants")
	const butNot = "takes webhooks, but not those of "
	t := wrong(name+" "+butNot+who, r.of(butNot+tenants)).quoting("the last answer", last)
	if !since.IsZero() && r.last.Before(since) {
		t = wrong(name+" does not take the webhooks of "+who+", and has taken no others since",
			r.of("fails for "+tenants+", and has taken no others since")).quoting("the last try", last)
	}
	return t.naming(names).since(since)
}

// nameOf returns the subject of a sentence about a receiver. Its name is left out if there is only one.
func (g *Gate) nameOf(r *Receiver) string {
	if len(g.Receivers) > 1 {
		return "The receiver " + r.Name + " (" + r.Address + ")"
	}
	return "The receiver " + r.Address
}

// deliveriesLate says that more than a twentieth of the deliveries of the last hour, three at least, came a minute or
// more after usher's 200, again and again: what waited for a receiver that was down is late all at once, and over.
func deliveriesLate(s *Status, now time.Time) (all []Trouble) {
	for _, r := range s.receivers() {
		late, in := metrics.Sum(r.deliveries, metrics.Minutes, metrics.DeliveredLate), metrics.Sum(r.deliveries, metrics.Minutes)
		again := 0
		for _, m := range r.deliveries[max(0, len(r.deliveries)-lately):] {
			again += min(1, m.Sum(metrics.DeliveredLate))
		}
		if late < 3 || late*20 <= in || again < 3 {
			continue
		}
		what := fmt.Sprintf("%s got %s of %s of the last hour a minute late, or later", s.Gate.nameOf(r), view.Count(late), view.Plural(in, "webhook", "webhooks"))
		all = append(all, wrong(what, r.of("gets webhooks late")).link("/webhooks"))
	}
	return all
}
