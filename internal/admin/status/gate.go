package status

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/receiver"
)

// Gate is the state of the webhook gate.
type Gate struct {
	Address   string     `json:"address"` // where webhooks are posted
	Receivers []Receiver `json:"receivers"`

	Set       *receiver.Set                  `json:"-"`
	Tries     map[string]metrics.RecentTries `json:"-"` // by the receiver's name
	Decisions []metrics.Minute               `json:"-"` // of metrics.Gate

	FailedChecks metrics.FailedChecks   `json:"-"`
	PassedChecks []metrics.FailedChecks `json:"-"` // after which one passed
	Questions    metrics.Questions      `json:"-"`

	CertificateEnds time.Time `json:"-"` // zero without TLS

	// Only without an inbox:
	Invalid        int     `json:"invalid,omitempty"` // webhooks that usher rejected, and that nobody has sent again
	InvalidDetails Details `json:"-"`
}

// judge derives Receivers. box is nil without an inbox.
func (g *Gate) judge(box *Inbox) {
	g.Receivers = []Receiver{} // An empty list is written as [], not as null.
	for _, r := range g.Set.All() {
		g.Receivers = append(g.Receivers, newReceiver(r, g.Tries[r.Name], box))
	}
}

// GateChart returns the chart of the gate's decisions. It leaves out those that do not occur.
func (s *Status) GateChart() page.Chart {
	var starts []time.Time
	var series []page.Series
	minutes := sinceFirst(s.Gate.Decisions)
	for _, m := range minutes {
		starts = append(starts, m.Start)
	}
	notWebhooks := metrics.Sum(minutes, len(minutes), metrics.NoWebhooks, metrics.FailedQuestions)
	total := metrics.Sum(minutes, len(minutes)) - notWebhooks
	summary := ""
	for i, decision := range metrics.Decisions {
		n := metrics.Sum(minutes, len(minutes), i)
		if n == 0 {
			continue
		}
		one := page.Series{Class: "c-" + decision, Label: decision, Total: page.Count(n)}
		for _, m := range minutes {
			one.Add(float64(m.Counts[i]), strconv.Itoa(m.Counts[i]))
		}
		series = append(series, one)
		summary += fmt.Sprintf(", %s %s", page.Count(n), decision)
	}
	return page.NewBars("decisions", "Webhooks per minute",
		page.Plural(total, "webhook", "webhooks")+" in the last hour"+summary+".", starts, series, figure)
}

// decided returns how many webhooks got this decision lately.
func decided(g *Gate, decision string) int {
	return metrics.Sum(g.Decisions, lately, slices.Index(metrics.Decisions[:], decision))
}

// questionTroubles say that webhooks which ask the receiver a question got a 5xx. Of all other webhooks that
// got one, missedTroubles say so.
func questionTroubles(s *Status, now time.Time) []Trouble {
	if s.Gate == nil {
		return nil
	}
	n := metrics.Sum(s.Gate.Decisions, lately, metrics.FailedQuestions)
	if n == 0 || isOver(s.Gate.Questions.Failed, s.Gate.Questions.Answered, now) {
		return nil
	}
	what := fmt.Sprintf("The receiver did not answer %s in the last %d minutes",
		page.Plural(n, "question", "questions"), lately)
	return []Trouble{questionsFail.is(what, ofGate("")).link("/webhooks?state=failed")}
}

var questionsFail = kind("questions-fail", Critical, "",
	"The billing service has asked (USHER_WEBHOOK_SYNC_TYPES), and got a 5xx: what it asked for, such as a "+
		"checkout, did not go on.",
	"Fix the receiver, or the way to it. The page of the failed webhooks says what each of them got.").ofReplica()

// senderTroubles say that every webhook fails the check of its sender, from the third one on. One that failed
// it is normal: anybody can send something.
func senderTroubles(s *Status, now time.Time) []Trouble {
	if s.Gate == nil {
		return nil
	}
	f := s.Gate.FailedChecks
	if f.Count < metrics.SomeFailed || now.Sub(f.Last) > 15*time.Minute {
		return nil
	}
	begin := f.Since.UTC().Format(time.TimeOnly) + " UTC"
	what := "Every webhook since " + begin + " failed the check of its sender: " + page.Count(f.Count)
	return []Trouble{allRejected.is(what, ofGate("")).
		since(f.Since).
		link("/webhooks?state=rejected").
		counts(f.Count, 0)}
}

// overSenders are those that ended because a webhook passed, in the last minute: perhaps before anybody looked.
func (s *Status) overSenders(now time.Time) (all []Trouble) {
	if s.Gate == nil {
		return nil
	}
	for _, f := range s.Gate.PassedChecks {
		if now.Sub(f.Passed) > time.Minute {
			continue
		}
		webhooks := page.Plural(f.Count, "webhook", "webhooks")
		what := webhooks + " failed the check of their sender" + between(f.Since, f.Last) + ", then one passed"
		t := allRejected.is(what, ofGate("")).since(f.Since).counts(f.Count, 0)
		t.over = f.Passed.UTC()
		t.then = "See at /webhooks?state=rejected of the admin page, of each replica its own, who sent them. " +
			"If it was the billing service, resend them from its webhook log: usher has not taken them in."
		all = append(all, t)
	}
	return all
}

var allRejected = kind("senders-rejected", Warning, "UsherEverythingRejected",
	"Either strangers try the address, or no change reaches your customers.",
	"The admin page, of each replica its own, shows at /webhooks?state=rejected who sent them, and why each "+
		"was rejected. If it was the billing service: give it and the gate the same secret, then resend them "+
		"from its webhook log.").ofReplica()

// clockTroubles say that the clocks of this machine and of the inbox's database differ.
func clockTroubles(s *Status, _ time.Time) []Trouble {
	if s.Inbox == nil || s.Inbox.ClockAhead.Abs() <= maxClockDifference {
		return nil
	}
	way := "ahead of"
	if s.Inbox.ClockAhead < 0 {
		way = "behind"
	}
	by := page.Span(s.Inbox.ClockAhead.Abs().Round(time.Second))
	what := "The clock of this machine is " + by + " " + way + " the database's"
	return []Trouble{clocksDiffer.is(what, ofGate(""))}
}

// maxClockDifference is how much the clocks may differ.
const maxClockDifference = 5 * time.Second

var clocksDiffer = kind("clocks-differ", Warning, "",
	"Receivers that check webhook-timestamp reject what this replica delivers, if its clock is the wrong "+
		"one: most allow five minutes. usher's own times may be wrong, too.",
	"Set the clock that is wrong, by NTP: this machine's, or that of the database's machine.").ofReplica()

// certificateTroubles say that the gate's certificate ends, from a week before, as the alert does.
func certificateTroubles(s *Status, now time.Time) []Trouble {
	if s.Gate == nil || s.Gate.CertificateEnds.IsZero() {
		return nil
	}
	const what = "The TLS certificate of the webhook gate"
	switch left := s.Gate.CertificateEnds.Sub(now); {
	case left <= 0:
		return []Trouble{certificateEnded.is(what+" has expired", ofGate("")).since(s.Gate.CertificateEnds)}
	case left < 24*time.Hour:
		return []Trouble{certificateEnded.is(what+" expires in "+page.Span(left.Round(time.Second)), ofGate(""))}
	case left < 7*24*time.Hour:
		return []Trouble{certificateEnds.is(what+" expires in "+page.Span(left.Round(time.Second)), ofGate(""))}
	}
	return nil
}

const newCertificate = "Put a new one into the files that USHER_WEBHOOK_TLS_CERT_FILE and " +
	"USHER_WEBHOOK_TLS_KEY_FILE name: usher uses it without a restart."

var (
	certificateEnds = kind("certificate-ends", Warning, "UsherCertificateEnds",
		"When it has expired, senders do not connect, and changes do not reach your customers.",
		newCertificate).ofReplica()
	certificateEnded = kind("certificate-ends", Critical, "UsherCertificateEnds",
		"When it has expired, senders do not connect, and changes do not reach your customers.",
		newCertificate).ofReplica()
)
