package status

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/receiver"
)

// PausedBy returns the pause that holds back a tenant's webhooks, or nil. known are the receivers of the gate; if the gate is off, nil,
// and only other replicas know them. tried is the name of the receiver that was tried last. It counts only if known has none for the
// platform.
func PausedBy(paused []inbox.Pause, known *receiver.Set, platform, tenant, tried string) *inbox.Pause {
	if r := known.For(platform); r != nil {
		tried = r.Name
	}
	if i := slices.IndexFunc(paused, func(p inbox.Pause) bool { return p.Covers(platform, tenant, tried) }); i >= 0 {
		return &paused[i]
	}
	return nil
}

// Gate is the state of the webhook gate.
type Gate struct {
	Address   string     `json:"address"` // where webhooks are posted
	Receivers []Receiver `json:"receivers"`

	Set       *receiver.Set                  `json:"-"`
	Tries     map[string]metrics.RecentTries `json:"-"` // by the receiver's name
	Decisions []metrics.Minute               `json:"-"` // of metrics.Gate

	CertificateEnds time.Time `json:"-"` // zero without TLS

	// Only without an inbox:
	Refused        int      `json:"refused,omitempty"` // webhooks that usher refused, and that nobody has sent again
	RefusedDetails Details  `json:"-"`
	FailedTenants  []string `json:"-"` // whose last webhook failed in the last minutes; the newest first
}

// Receiver is the state of a receiver.
type Receiver struct {
	Name      string        `json:"name"`
	Platforms []string      `json:"platforms"` // whose webhooks it gets; if empty, those of all platforms that no other receiver has
	Address   string        `json:"address"`
	LastTry   string        `json:"last_try,omitempty"` // see metrics.RecentTries.Last
	State     string        `json:"state"`              // in words
	Tone      string        `json:"tone"`               // good, warn or bad; empty before the first try
	Waiting   int           `json:"waiting"`            // webhooks in the inbox
	Oldest    time.Duration `json:"oldest"`
	Parked    int           `json:"parked"`
	Paused    bool          `json:"paused"` // somebody has paused its deliveries

	diagnosis diagnosis
}

// judge derives Receivers. box is nil without an inbox.
func (g *Gate) judge(box *Inbox) {
	g.Receivers = []Receiver{} // [] and not null
	for _, r := range g.Set.All() {
		g.Receivers = append(g.Receivers, newReceiver(r, g.Tries[r.Name], box))
	}
}

// diagnosis says what is wrong with a receiver.
type diagnosis string

const (
	fine        diagnosis = ""
	away        diagnosis = "away"         // it takes no webhooks
	refusesSome diagnosis = "refuses some" // it takes webhooks, but not those of some tenants
)

// newReceiver describes a receiver. box is nil without an inbox.
func newReceiver(r *receiver.Receiver, tries metrics.RecentTries, box *Inbox) Receiver {
	s := Receiver{Name: r.Name, Platforms: append([]string{}, r.Platforms...), Address: r.Address(), LastTry: tries.Last, diagnosis: diagnose(tries)}
	refuses := fmt.Sprintf("failed %s in the last %d minutes", page.Plural(tries.Failed, "time", "times"), lately)
	if box != nil {
		if stats, ok := box.stats.Receivers[r.Name]; ok {
			s.Waiting, s.Oldest, s.Parked, s.diagnosis = stats.Pending, stats.Oldest, stats.Parked, diagnoseInbox(&stats)
			refuses = "takes webhooks, but not those of " + page.Plural(stats.Missed+stats.NotAccepted, "tenant", "tenants")
		}
		s.Paused = slices.ContainsFunc(box.Paused, func(p inbox.Pause) bool { return p.Tenant == "" && (p.Receiver == "" || p.Receiver == r.Name) })
	}
	switch {
	case s.Paused: // so usher does not learn whether it would take webhooks
		s.State, s.Tone = "paused", warn
	case s.diagnosis == away:
		s.State, s.Tone = failureWords(tries.LastFailed), bad
	case s.diagnosis == refusesSome:
		s.State, s.Tone = refuses, warn
	case s.Parked > 0:
		s.State, s.Tone = fmt.Sprintf("takes webhooks, but %s parked", page.Plural(s.Parked, "is", "are")), warn
	case tries.Last == "":
		s.State = "has not been tried yet"
	default:
		s.State, s.Tone = "takes webhooks", good
	}
	return s
}

// manyInARow failures, whichever the tenants, mean that the receiver is down, and not that it refuses some tenants. With an inbox the
// courier decides that.
const manyInARow = 10

// diagnose returns what is wrong with a receiver, judged by the last tries.
func diagnose(tries metrics.RecentTries) diagnosis {
	switch {
	case tries.OK == 0 && tries.Last != "" && tries.Last != "ok", tries.InARow >= manyInARow:
		return away
	case tries.Failed > 0:
		return refusesSome
	}
	return fine
}

// diagnoseInbox returns what is wrong with a receiver, judged by what waits for it in the inbox, by the same rule as deliveries. The last
// try says less: it may have been that of any tenant.
func diagnoseInbox(box *inbox.Figures) diagnosis {
	switch failing := box.Missed + box.NotAccepted; {
	case failing > 0 && box.FailsForEverybody:
		return away
	case failing > 0:
		return refusesSome
	}
	return fine
}

// failureWords describes how a receiver fails, by the result of a try.
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

// GateChart returns the chart of the gate's decisions. It leaves out those that do not occur.
func (s *Status) GateChart() page.Chart {
	var starts []time.Time
	var series []page.Series
	minutes := sinceFirst(s.Gate.Decisions)
	for _, m := range minutes {
		starts = append(starts, m.Start)
	}
	total, summary := metrics.Sum(minutes, len(minutes)), ""
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

// Inbox is the state of the inbox.
type Inbox struct {
	Waiting  int           `json:"waiting"`
	Oldest   time.Duration `json:"oldest"`
	Parked   int           `json:"parked"`
	Refused  int           `json:"refused"`  // webhooks that usher refused, and that nobody has dealt with
	Used     int64         `json:"used"`     // bytes of the webhooks that wait or are parked
	Limit    int64         `json:"limit"`    // how large Used may become
	HeldUp   []HeldUp      `json:"held_up"`  // the one that waits longest first
	Homeless int           `json:"homeless"` // webhooks that wait although no receiver takes their platform
	Shared   bool          `json:"shared"`   // with other replicas
	Paused   []inbox.Pause `json:"paused,omitempty"`
	Error    string        `json:"error,omitempty"`  // why the inbox takes no webhooks
	Counted  time.Time     `json:"counted,omitzero"` // the inbox cannot be read now, and its counts are those of this time
	Unknown  bool          `json:"-"`                // it was never read, so the counts mean nothing

	ParkedDetails  Details `json:"-"`
	RefusedDetails Details `json:"-"`

	stats inbox.Stats
}

// Details describes a group of webhooks that somebody should look at.
type Details struct {
	Tenants []string // the newest first
	Reason  string   // of the newest webhook; may be empty
	Link    string   // the page that shows them
}

// HeldUp is a tenant whose webhooks wait behind one whose delivery failed.
type HeldUp struct {
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Receiver string    `json:"receiver"`
	Webhook  string    `json:"webhook"` // id of the webhook that failed
	Tries    int       `json:"tries"`
	Answer   string    `json:"answer"`        // the receiver's last answer, in words
	Next     time.Time `json:"next,omitzero"` // when usher tries it again; zero while it is paused
	Behind   int       `json:"behind"`        // how many webhooks wait behind it
	Down     bool      `json:"down"`          // the receiver seems to be down as a whole
	Paused   bool      `json:"paused"`        // deliveries of the tenant are paused
}

// NewInbox returns the state of an inbox. known are the receivers of the gate; err is why the inbox takes no webhooks, or nil.
func NewInbox(s inbox.Stats, held []inbox.HeldUp, known *receiver.Set, err error) *Inbox {
	out := &Inbox{
		Waiting: s.Pending, Oldest: s.Oldest, Parked: s.Parked, Refused: s.Refused, Used: s.Used, Limit: s.Limit,
		HeldUp: []HeldUp{}, Homeless: s.Receivers[""].Pending, Paused: s.Paused, Unknown: s.At.IsZero(), stats: s, // [] and not null
	}
	if s.Old {
		out.Counted = s.At.UTC().Truncate(time.Second)
	}
	for i := range held {
		out.HeldUp = append(out.HeldUp, NewHeldUp(&held[i], known, s.Paused))
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// NewHeldUp describes a tenant that is held up. known are the receivers of the gate, paused the pauses in force.
func NewHeldUp(held *inbox.HeldUp, known *receiver.Set, paused []inbox.Pause) HeldUp {
	next, pause := held.Next, PausedBy(paused, known, held.Platform, held.Tenant, held.Receiver)
	if pause != nil {
		next = time.Time{}
	}
	return HeldUp{
		Platform: held.Platform, Tenant: held.Tenant, Receiver: held.Receiver, Webhook: strconv.FormatInt(held.ID, 10),
		Tries: held.Tries, Answer: held.Answer(), Next: next, Behind: held.Behind, Down: held.Down, Paused: pause != nil,
	}
}

// Name returns the tenant as people write it.
func (h *HeldUp) Name() string { return page.TenantName(h.Platform, h.Tenant) }

func (h *HeldUp) NextTry() string { return NextTry(h.Next, h.Paused, h.Down) }

// NextTry says when usher tries a webhook next. While the receiver is down there is no time for that: usher probes it with one webhook
// after the other, whichever comes next.
func NextTry(at time.Time, paused, down bool) string {
	switch next := max(0, time.Until(at)).Round(time.Second); {
	case paused:
		return "paused"
	case down:
		return "next try when the receiver is back"
	case next == 0:
		return "next try now"
	default:
		return "next try in " + page.Span(next)
	}
}

// shownHeldUp is how many tenants the overview lists that are held up.
const shownHeldUp = 10

// FirstHeldUp returns the tenants that the overview lists.
func (s *Inbox) FirstHeldUp() []HeldUp { return s.HeldUp[:min(shownHeldUp, len(s.HeldUp))] }

// MoreHeldUp returns how many tenants the overview does not list.
func (s *Inbox) MoreHeldUp() int { return max(0, len(s.HeldUp)-shownHeldUp) }

// AllPaused reports whether one pause covers all deliveries.
func (s *Inbox) AllPaused() bool {
	return slices.ContainsFunc(s.Paused, func(p inbox.Pause) bool { return p.Tenant == "" && p.Receiver == "" })
}

func (s *Inbox) troubles() (all []Trouble) {
	if s.Error != "" {
		fix := "If the disk of the file in USHER_WEBHOOK_INBOX is full, free some space: usher then continues by itself. Otherwise put the file back or fix the disk, then restart usher."
		if s.Shared {
			fix = "Check the database in USHER_WEBHOOK_INBOX: when it is back, usher continues by itself."
		}
		all = append(all, Trouble{bad, "The inbox takes no webhooks: " + s.Error,
			"Senders get 503, and usher is not ready. Nothing that was answered 200 is lost. " + fix, ""})
	}
	if s.Limit > 0 && s.Used > s.Limit/10*9 {
		all = append(all, Trouble{bad, fmt.Sprintf("The inbox is nearly full: %s of %s", page.Bytes(s.Used), page.Bytes(s.Limit)),
			"When it is full, senders get 503. Fix the receivers so that they take what waits, discard what they will never take, or raise USHER_WEBHOOK_INBOX_MAX_BYTES.", "/webhooks?state=waiting"})
	}
	if s.Homeless > 0 {
		all = append(all, Trouble{bad, page.Plural(s.Homeless, "webhook waits, but no receiver takes its platform any more", "webhooks wait, but no receiver takes their platform any more"),
			"Give that platform to a receiver (USHER_WEBHOOK_RECEIVERS_n_PLATFORMS), or set USHER_WEBHOOK_FORWARD_URL, then restart usher.", "/webhooks?state=waiting"})
	}
	if s.Parked > 0 {
		are := " are parked"
		if s.Parked == 1 {
			are = " is parked"
		}
		all = append(all, Trouble{warn, s.ParkedDetails.words(s.Parked) + are,
			quoted("The receiver answered", s.ParkedDetails.Reason) + "usher does not retry what is parked. Fix the receiver, then send it again.", s.ParkedDetails.Link})
	}
	if s.Refused > 0 {
		all = append(all, s.RefusedDetails.refused(s.Refused, "and send it again, or open it here, then accept it as it is or discard it."))
	}
	return all
}

// refused returns the trouble of webhooks that came from the right sender, and whose content usher refused.
func (d *Details) refused(n int, do string) Trouble {
	return Trouble{bad, "usher refused " + d.words(n),
		quoted("The last one", d.Reason) + "It may be a change that nobody sends again. Correct it in the billing service " + do, d.Link}
}

// words counts the webhooks and names their tenants.
func (d *Details) words(n int) string {
	count := page.Plural(n, "webhook", "webhooks")
	if len(d.Tenants) == 0 {
		return count
	}
	return count + " of " + page.FirstFew(d.Tenants)
}

// quoted returns a sentence with somebody's words, or nothing if there are none.
func quoted(who, words string) string {
	if words == "" {
		return ""
	}
	return who + ": " + page.Excerpt(words) + ". "
}
