package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/decisions"
	"usher/internal/admin/hour"
	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// ReceiverState is how a receiver stands.
type ReceiverState struct {
	Name      string
	Platforms []string // whose webhooks it gets; none: all that no other gets
	Address   string   // no more of it than anybody may see
	Signed    bool     // what it gets is signed
	Tries     metrics.RecentTries
}

// manyInARow failures, over all tenants, say that the receiver is down, and not that it refuses some
// of them; only without an inbox, whose courier knows better.
const manyInARow = 10

// ReceiverStatus is one receiver.
type ReceiverStatus struct {
	Name      string        `json:"name"`
	Platforms []string      `json:"platforms"` // whose webhooks it gets; none: all that no other gets
	Address   string        `json:"address"`
	LastTry   string        `json:"last_try,omitempty"`
	State     string        `json:"state"`   // in words
	Tone      string        `json:"tone"`    // good, warn or bad; empty: not known yet
	Waiting   int           `json:"waiting"` // in the inbox
	Oldest    time.Duration `json:"oldest"`
	Parked    int           `json:"parked"`
	Paused    bool          `json:"paused"` // somebody has paused its deliveries

	wrong diagnosis
}

// pause notes that its deliveries are paused, and since then nothing is known of how it does.
func (s *ReceiverStatus) pause(all []inbox.Pause) {
	if slices.ContainsFunc(all, func(p inbox.Pause) bool { return p.Tenant == "" && (p.Receiver == "" || p.Receiver == s.Name) }) {
		s.Paused, s.State, s.Tone = true, "paused", warn
	}
}

// diagnosis is what is wrong with a receiver.
type diagnosis string

const (
	fine        diagnosis = ""
	away        diagnosis = "away"         // it does not take anything
	refusesSome diagnosis = "refuses some" // it takes others
)

// receiverStatus says how a receiver stands. box is nil without an inbox.
func receiverStatus(r *ReceiverState, box *inbox.ReceiverStats) ReceiverStatus {
	s := ReceiverStatus{Name: r.Name, Platforms: append([]string{}, r.Platforms...), Address: r.Address, LastTry: r.Tries.Last}
	refuses := fmt.Sprintf("did not take %s of the last %d minutes", page.Plural(r.Tries.Failed, "try", "tries"), lately)
	switch t := r.Tries; {
	case box != nil:
		s.Waiting, s.Oldest, s.Parked = box.Pending, box.Oldest, box.Parked
		refuses = "takes webhooks, but not those of " + page.Plural(box.Refused, "tenant", "tenants")
		s.wrong = diagnose(box)
	case t.OK == 0 && t.Last != "" && t.Last != "ok", t.InARow >= manyInARow:
		s.wrong = away
	case t.Failed > 0:
		s.wrong = refusesSome
	}
	switch {
	case s.wrong == away:
		s.State, s.Tone = failureWords(r.Tries.LastFailed), bad
	case s.wrong == refusesSome:
		s.State, s.Tone = refuses, warn
	case s.Parked > 0:
		s.State, s.Tone = fmt.Sprintf("takes webhooks, but %s parked", page.Plural(s.Parked, "is", "are")), warn
	case r.Tries.Last == "":
		s.State = "has not been tried yet"
	default:
		s.State, s.Tone = "takes webhooks", "good"
	}
	return s
}

// fewTenants that are refused say nothing of the receiver, though nobody else's webhooks came meanwhile.
const fewTenants = 2

// diagnose says what is wrong with a receiver, by what waits for it: not by its last try alone, which may be
// that of any tenant.
func diagnose(box *inbox.ReceiverStats) diagnosis {
	switch {
	case box.Down || box.Missed > 0, box.Refused > fewTenants && box.TakesNone:
		return away
	case box.Refused > 0:
		return refusesSome
	}
	return fine
}

// failureWords says how a receiver fails, by the result of a try.
func failureWords(result string) string {
	switch result {
	case "error":
		return "can't be reached"
	case "timeout":
		return "does not answer in time"
	default:
		return "answers with errors"
	}
}

// Name is the tenant as people write it.
func (h *HeldUp) Name() string { return page.TenantName(h.Platform, h.Tenant) }

// WhenBack is when something is tried whose receiver is down.
const WhenBack = "next try when the receiver is back"

// NextTry says when it is tried next.
func (h *HeldUp) NextTry() string { return nextTry(h.Next, h.Paused, h.Down) }

// NextTry says when one that waits is tried next; empty: nobody knows.
func (w *Webhook) NextTry() string {
	if w.waits() && (w.Paused || w.HeldBy == "" && !w.Next.IsZero()) {
		return nextTry(w.Next, w.Paused, w.Down)
	}
	return ""
}

// nextTry has no time for a receiver that is down: one webhook after the other is tried to see whether it is back, and
// whose turn it is nobody can say.
func nextTry(at time.Time, paused, down bool) string {
	switch next := max(0, time.Until(at)).Round(time.Second); {
	case paused:
		return "paused"
	case down:
		return WhenBack
	case next == 0:
		return "next try now"
	default:
		return "next try in " + page.Span(next)
	}
}

// shownHeldUp is how many the overview has a line for.
const shownHeldUp = 10

// FirstHeldUp are those that the overview has a line for, and MoreHeldUp is how many others there are.
func (s *Status) FirstHeldUp() []HeldUp {
	return s.Inbox.HeldUp[:min(shownHeldUp, len(s.Inbox.HeldUp))]
}

// MoreHeldUp counts; see FirstHeldUp.
func (s *Status) MoreHeldUp() int { return len(s.Inbox.HeldUp) - len(s.FirstHeldUp()) }

// Full says how full the inbox is, in words.
func (s *InboxStatus) Full() string {
	switch percent := s.Used * 100 / max(s.Limit, 1); {
	case s.Used == 0:
		return "0\u00a0%"
	case percent == 0:
		return "<\u00a01\u00a0%"
	default:
		return fmt.Sprintf("%d\u00a0%%", percent)
	}
}

// receiverTroubles are those of the receivers behind an inbox: it names the receiver when it takes
// nothing, and the tenants when it takes others.
func receiverTroubles(gate *GateStatus, box *InboxStatus) (all []Trouble) {
	if gate == nil {
		return nil
	}
	for i := range gate.Receivers {
		r := &gate.Receivers[i]
		name := gate.called(r)
		waits := fmt.Sprintf("%s, the oldest for %s", page.Plural(r.Waiting, "webhook waits", "webhooks wait"), page.Span(r.Oldest.Round(time.Second)))
		switch {
		case r.Oldest <= shortPatience, r.Paused: // which every page says
		case r.wrong == away:
			all = append(all, Trouble{bad, name + " " + r.State + ": " + waits,
				fmt.Sprintf("Bring the receiver %s back. Nothing is lost: what waits is delivered when it answers, in order.", r.Address), "/webhooks?outcome=waiting"})
		case r.wrong == refusesSome:
			all = append(all, refusedTrouble(name, r.Name, box.HeldUp)...)
		case r.Oldest > patience && len(box.Paused) == 0: // else those may be the oldest
			all = append(all, Trouble{bad, name + " is slow to take webhooks: " + waits,
				fmt.Sprintf("See why the receiver %s is slow. Nothing is lost: what waits is delivered in order.", r.Address), "/webhooks?outcome=waiting"})
		}
	}
	return all
}

// namedTenants is how many tenants a trouble names.
const namedTenants = 3

func refusedTrouble(name, receiver string, held []HeldUp) []Trouble {
	var tenants []string
	paused := false
	for i := range held {
		switch h := &held[i]; {
		case h.Receiver != receiver || h.Down:
		case h.Paused:
			paused = true
		default:
			tenants = append(tenants, h.Name())
		}
	}
	if paused && len(tenants) == 0 { // which every page says
		return nil
	}
	return []Trouble{{warn, name + " does not take the webhooks of " + naming(tenants),
		"See below what it answers, and how many wait behind them. Other tenants' webhooks are delivered. usher retries.", "/webhooks?outcome=waiting"}}
}

// called is how a trouble names a receiver.
func (g *GateStatus) called(r *ReceiverStatus) string {
	if len(g.Receivers) > 1 {
		return "The receiver " + r.Name
	}
	return "The receiver"
}

// naming names the first few of some tenants.
func naming(tenants []string) string {
	if n := len(tenants) - namedTenants; n > 0 {
		return strings.Join(tenants[:namedTenants], ", ") + " and " + page.Plural(n, "other", "others")
	}
	if n := len(tenants) - 1; n > 0 {
		return strings.Join(tenants[:n], ", ") + " and " + tenants[n]
	}
	return cmp.Or(strings.Join(tenants, ""), "some tenants")
}

// failedTenants are those whose last webhook failed, in the last minutes; the newest first.
func (h *Handler) failedTenants() (failed []string) {
	if h.cfg.Decisions == nil {
		return nil
	}
	since := time.Now().Add(-lately * time.Minute)
	seen := make(map[string]bool)
	for _, e := range h.cfg.Decisions.List(decisions.Filter{Limit: maxPage}) {
		name := page.TenantName(e.Platform, e.Tenant)
		if e.At.Before(since) {
			break
		}
		if e.Tenant != "" && e.Decision == "failed" && !seen[name] {
			failed = append(failed, name)
		}
		seen[name] = seen[name] || e.Decision != "rejected" // which says nothing of the receiver
	}
	return failed
}

// passTroubles are those of a gate without an inbox. failed are the tenants whose last webhook was.
func passTroubles(gate *GateStatus, decisions []hour.Minute, failed []string) []Trouble {
	n := hour.Sum(decisions, lately, slices.Index(metrics.Decisions[:], "failed"))
	if n == 0 {
		return nil
	}
	const resend = "then resend them from the webhook log of the billing service. With USHER_WEBHOOK_INBOX usher would keep them."
	var all []Trouble
	for i := range gate.Receivers {
		if r := &gate.Receivers[i]; r.wrong == away {
			all = append(all, Trouble{bad, fmt.Sprintf("%s %s: %s in the last %d minutes", gate.called(r), r.State, page.Plural(n, "webhook failed", "webhooks failed"), lately),
				fmt.Sprintf("Bring the receiver %s back, %s", r.Address, resend), "/webhooks?outcome=failed"})
		}
	}
	if len(all) == 0 && len(failed) > 0 {
		all = append(all, Trouble{warn, "The last webhooks of " + naming(failed) + " failed", "See what the receiver answered, " + resend, "/webhooks?outcome=failed"})
	}
	return all
}
