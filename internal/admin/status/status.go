// Package status turns the figures of usher's parts into words: the states and problems that the overview page and GET /api/status
// show, with what to do about each problem. It only computes: the caller passes in all figures, and the time.
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

// Status is the answer of GET /api/status, and the overview page. The caller fills in the figures; Judge adds the words and Troubles.
type Status struct {
	Version  string    `json:"version"`
	Ready    bool      `json:"ready"`
	Troubles []Trouble `json:"problems"` // the worst first
	Ports    []Port    `json:"ports"`
	Gate     *Gate     `json:"gate,omitempty"`  // left out if the gate is off
	Inbox    *Inbox    `json:"inbox,omitempty"` // left out if there is none
}

// Judge describes the state of each part in words, and lists the troubles.
func (s *Status) Judge(now time.Time) {
	s.Ports = append([]Port{}, s.Ports...) // [] and not null
	for i := range s.Ports {
		s.Ports[i].judge(now)
	}
	if s.Gate != nil {
		s.Gate.judge(s.Inbox)
	}
	s.Troubles = s.troubles(now)
}

// Trouble is a problem, and what to do about it.
type Trouble struct {
	Severity string `json:"severity"` // bad: something does not work now; warn: it may soon not work, or somebody should look at it
	What     string `json:"what"`
	Do       string `json:"do"`
	Link     string `json:"-"` // address of the webhooks that it is about; empty for none
}

const (
	good = "good"
	warn = "warn"
	bad  = "bad"

	lately = metrics.Lately

	// patience is how long a webhook may wait before that is a trouble; shortPatience, if the last try failed.
	patience      = time.Minute
	shortPatience = 3 * time.Second
)

func (s *Status) troubles(now time.Time) []Trouble {
	all := []Trouble{} // [] and not null
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
			all = append(all, g.RefusedDetails.refused(g.Refused, "and send it again from its webhook log."))
		}
		if s.Inbox == nil {
			all = append(all, passThroughTroubles(g)...)
		}
		all = append(all, senderTroubles(g.Decisions)...)
		if !g.CertificateEnds.IsZero() {
			all = append(all, certificateTroubles(g.CertificateEnds.Sub(now))...)
		}
	}
	slices.SortStableFunc(all, func(a, b Trouble) int { return strings.Compare(a.Severity, b.Severity) })
	return all
}

// receiverTroubles returns the troubles of receivers behind an inbox. They name the receiver if it takes nothing, and the tenants if it
// takes the webhooks of others.
func receiverTroubles(gate *Gate, box *Inbox) (all []Trouble) {
	for i := range gate.Receivers {
		r := &gate.Receivers[i]
		name := gate.nameOf(r)
		waits := fmt.Sprintf("%s, the oldest for %s", page.Plural(r.Waiting, "webhook waits", "webhooks wait"), page.Span(r.Oldest.Round(time.Second)))
		switch {
		case r.Oldest <= shortPatience, r.Paused: // a banner on every page names the pauses
		case r.diagnosis == away:
			all = append(all, Trouble{bad, name + " " + r.State + ": " + waits,
				fmt.Sprintf("Fix the receiver %s. Nothing is lost: usher then delivers what waits, in order.", r.Address), "/webhooks?state=waiting"})
		case r.diagnosis == refusesSome:
			all = append(all, refusedTenants(name, r.Name, box.HeldUp)...)
		case r.Oldest > patience && len(box.Paused) == 0: // with a pause, the oldest may be one that is paused
			all = append(all, Trouble{bad, name + " is slow to take webhooks: " + waits,
				fmt.Sprintf("Find out why the receiver %s is slow. Nothing is lost: usher delivers what waits, in order.", r.Address), "/webhooks?state=waiting"})
		}
	}
	return all
}

// refusedTenants returns the trouble of a receiver that refuses some tenants' webhooks.
func refusedTenants(name, receiver string, held []HeldUp) []Trouble {
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
	if paused && len(tenants) == 0 {
		return nil
	}
	return []Trouble{{warn, name + " does not take the webhooks of " + cmp.Or(page.FirstFew(tenants), "some tenants"),
		"See below what it answers, and how many wait behind them. Other tenants' webhooks are delivered. usher retries.", "/webhooks?state=waiting"}}
}

// certificateTroubles returns the trouble of a TLS certificate that lasts for so long. A week is when the alert begins, too.
func certificateTroubles(left time.Duration) []Trouble {
	const do = "Put a new one into the files that USHER_WEBHOOK_TLS_CERT_FILE and USHER_WEBHOOK_TLS_KEY_FILE name. usher uses it without a restart."
	switch {
	case left <= 0:
		return []Trouble{{bad, "The TLS certificate of the webhook gate has expired: senders do not trust it", do, ""}}
	case left < 7*24*time.Hour:
		return []Trouble{{warn, "The TLS certificate of the webhook gate expires in " + page.Span(left.Round(time.Second)), do, ""}}
	}
	return nil
}

// nameOf returns the subject of a sentence about a receiver. Its name is left out if there is only one.
func (g *Gate) nameOf(r *Receiver) string {
	if len(g.Receivers) > 1 {
		return "The receiver " + r.Name
	}
	return "The receiver"
}

// passThroughTroubles returns the troubles of receivers without an inbox.
func passThroughTroubles(gate *Gate) []Trouble {
	n := metrics.Sum(gate.Decisions, lately, slices.Index(metrics.Decisions[:], "failed"))
	if n == 0 {
		return nil
	}
	const resend = "then resend them from the webhook log of the billing service. With USHER_WEBHOOK_INBOX usher would keep them."
	var all []Trouble
	for i := range gate.Receivers {
		if r := &gate.Receivers[i]; r.diagnosis == away {
			all = append(all, Trouble{bad, fmt.Sprintf("%s %s: %s in the last %d minutes", gate.nameOf(r), r.State, page.Plural(n, "webhook failed", "webhooks failed"), lately),
				fmt.Sprintf("Fix the receiver %s, %s", r.Address, resend), "/webhooks?state=failed"})
		}
	}
	if len(all) == 0 && len(gate.FailedTenants) > 0 {
		all = append(all, Trouble{warn, "The last webhooks of " + page.FirstFew(gate.FailedTenants) + " failed", "See what the receiver answered, " + resend, "/webhooks?state=failed"})
	}
	return all
}

// senderTroubles reports that usher rejects everything that arrives. Some rejected webhooks are normal: anybody can send one.
func senderTroubles(decided []metrics.Minute) []Trouble {
	rejected := metrics.Sum(decided, lately, slices.Index(metrics.Decisions[:], "rejected"))
	if rejected < 3 || rejected != metrics.Sum(decided, lately) {
		return nil
	}
	return []Trouble{{warn, fmt.Sprintf("Every webhook of the last %d minutes was rejected: %s", lately, page.Count(rejected)),
		"See why: the sender may use another secret than the gate, or send a customised payload (USHER_WEBHOOK_SCHEMA_FILE).", "/webhooks"}}
}
