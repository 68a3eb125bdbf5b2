// Package status says how usher stands, in words: what the overview and GET /api/status show. It asks nobody for anything: all
// that it speaks of is handed in, the time, too.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
)

// Status is the answer of GET /api/status: what the overview shows. The caller says how the parts do; Judge adds what that means.
type Status struct {
	Version string    `json:"version"`
	Ready   bool      `json:"ready"`
	Wrong   []Trouble `json:"problems"` // the worst first
	Ports   []Port    `json:"ports"`
	Gate    *Gate     `json:"gate,omitempty"`  // left out when the gate is off
	Inbox   *Inbox    `json:"inbox,omitempty"` // left out when there is none

	Stopping bool `json:"-"` // usher is shutting down
}

// Judge says in words how usher's parts do.
func (s *Status) Judge(now time.Time) {
	s.Ports = append([]Port{}, s.Ports...) // [] and not null
	for i := range s.Ports {
		s.Ports[i].judge(now)
	}
	if s.Gate != nil {
		s.Gate.judge(s.Inbox)
	}
	s.Wrong = s.troubles(now)
}

// Trouble is something that is wrong, and what to do about it.
type Trouble struct {
	Severity string `json:"severity"` // bad: something does not work; warn: it will not, or somebody should look
	What     string `json:"what"`
	Do       string `json:"do"`
	Link     string `json:"-"` // the page of the webhooks that it is about
}

// Them says how many webhooks Link shows.
func (t Trouble) Them() string {
	if strings.HasPrefix(t.Link, "/webhooks/") {
		return "it"
	}
	return "them"
}

const (
	good = "good"
	warn = "warn"
	bad  = "bad"

	lately = metrics.Lately

	// patience is how long a webhook may wait before somebody should know; less is
	// enough when the last try failed.
	patience      = time.Minute
	shortPatience = 3 * time.Second
)

// troubles says what is wrong, the worst first, and what to do.
func (s *Status) troubles(now time.Time) []Trouble {
	all := []Trouble{} // [] and not null
	if s.Stopping {
		all = append(all, Trouble{warn, "usher is shutting down", "What is under way may still finish.", ""})
	}
	if s.Inbox != nil {
		all = append(all, s.Inbox.troubles()...)
	}
	if s.Inbox != nil && s.Gate != nil {
		all = append(all, receiverTroubles(s.Gate, s.Inbox)...)
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; p.Shares == "" {
			all = append(all, p.tokenTroubles(now)...)
		}
	}
	for i := range s.Ports {
		all = append(all, s.Ports[i].callTroubles()...)
	}
	if g := s.Gate; g != nil {
		if g.Refused > 0 {
			g.RefusedOnes.Link = "/webhooks?state=rejected"
			all = append(all, g.RefusedOnes.refused(g.Refused, "and send it again from its webhook log."))
		}
		if s.Inbox == nil {
			all = append(all, passTroubles(g)...)
		}
		all = append(all, senderTroubles(g.Decisions)...)
	}
	slices.SortStableFunc(all, func(a, b Trouble) int { return strings.Compare(a.Severity, b.Severity) })
	return all
}

// receiverTroubles are those of the receivers behind an inbox: it names the receiver when it takes
// nothing, and the tenants when it takes others.
func receiverTroubles(gate *Gate, box *Inbox) (all []Trouble) {
	for i := range gate.Receivers {
		r := &gate.Receivers[i]
		name := gate.called(r)
		waits := fmt.Sprintf("%s, the oldest for %s", page.Plural(r.Waiting, "webhook waits", "webhooks wait"), page.Span(r.Oldest.Round(time.Second)))
		switch {
		case r.Oldest <= shortPatience, r.Paused: // which every page says
		case r.wrong == away:
			all = append(all, Trouble{bad, name + " " + r.State + ": " + waits,
				fmt.Sprintf("Bring the receiver %s back. Nothing is lost: what waits is delivered when it answers, in order.", r.Address), "/webhooks?state=waiting"})
		case r.wrong == refusesSome:
			all = append(all, refusedTrouble(name, r.Name, box.HeldUp)...)
		case r.Oldest > patience && len(box.Paused) == 0: // else those may be the oldest
			all = append(all, Trouble{bad, name + " is slow to take webhooks: " + waits,
				fmt.Sprintf("See why the receiver %s is slow. Nothing is lost: what waits is delivered in order.", r.Address), "/webhooks?state=waiting"})
		}
	}
	return all
}

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
	return []Trouble{{warn, name + " does not take the webhooks of " + cmp.Or(page.FirstFew(tenants), "some tenants"),
		"See below what it answers, and how many wait behind them. Other tenants' webhooks are delivered. usher retries.", "/webhooks?state=waiting"}}
}

// called is how a trouble names a receiver.
func (g *Gate) called(r *Receiver) string {
	if len(g.Receivers) > 1 {
		return "The receiver " + r.Name
	}
	return "The receiver"
}

// passTroubles are those of a gate without an inbox.
func passTroubles(gate *Gate) []Trouble {
	n := metrics.Sum(gate.Decisions, lately, slices.Index(metrics.Decisions[:], "failed"))
	if n == 0 {
		return nil
	}
	const resend = "then resend them from the webhook log of the billing service. With USHER_WEBHOOK_INBOX usher would keep them."
	var all []Trouble
	for i := range gate.Receivers {
		if r := &gate.Receivers[i]; r.wrong == away {
			all = append(all, Trouble{bad, fmt.Sprintf("%s %s: %s in the last %d minutes", gate.called(r), r.State, page.Plural(n, "webhook failed", "webhooks failed"), lately),
				fmt.Sprintf("Bring the receiver %s back, %s", r.Address, resend), "/webhooks?state=failed"})
		}
	}
	if len(all) == 0 && len(gate.FailedOf) > 0 {
		all = append(all, Trouble{warn, "The last webhooks of " + page.FirstFew(gate.FailedOf) + " failed", "See what the receiver answered, " + resend, "/webhooks?state=failed"})
	}
	return all
}

// senderTroubles speaks up when nothing but what is turned away arrives. Some of it
// always may: anybody can knock.
func senderTroubles(decided []metrics.Minute) []Trouble {
	rejected := metrics.Sum(decided, lately, slices.Index(metrics.Decisions[:], "rejected"))
	if rejected < 3 || rejected != metrics.Sum(decided, lately) {
		return nil
	}
	return []Trouble{{warn, fmt.Sprintf("Every webhook of the last %d minutes was rejected: %s", lately, page.Count(rejected)),
		"See why: the sender may use another secret than the gate, or send a customised payload (USHER_WEBHOOK_SCHEMA_FILE).", "/webhooks"}}
}
