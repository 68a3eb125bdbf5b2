package status

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/inbox/store"
	"usher/internal/receiver"
)

// PausedBy returns the pause that holds a tenant's webhooks back, or nil. tried is the receiver that was tried last; the
// one that will be counts, where it is known. known are those of the gate; none where it is off, and other replicas know them.
func PausedBy(paused []store.Pause, known *receiver.Set, platform, tenant, tried string) *store.Pause {
	if r := known.For(platform); r != nil {
		tried = r.Name
	}
	if i := slices.IndexFunc(paused, func(p store.Pause) bool { return p.Covers(platform, tenant, tried) }); i >= 0 {
		return &paused[i]
	}
	return nil
}

// Gate is the webhook gate.
type Gate struct {
	Address   string       `json:"address"` // where webhooks are posted
	Receivers []Receiver   `json:"receivers"`
	Minutes   []GateMinute `json:"minutes"`

	Set       *receiver.Set                  `json:"-"`
	Tries     map[string]metrics.RecentTries `json:"-"` // at each receiver, by its name
	Decisions []metrics.Minute               `json:"-"` // see metrics.Decisions

	// Without an inbox: how many webhooks were refused and not sent again since, and the tenants whose last webhook failed, in the
	// last minutes, the newest first.
	Refused     int      `json:"refused,omitempty"`
	RefusedOnes Batch    `json:"-"`
	FailedOf    []string `json:"-"`
}

// GateMinute is what the gate decided within one.
type GateMinute struct {
	Start     time.Time      `json:"start"`
	Decisions map[string]int `json:"decisions"`
}

// Receiver is one receiver.
type Receiver struct {
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

// judge says how the receivers do; box is nil without an inbox.
func (g *Gate) judge(box *Inbox) {
	g.Receivers = []Receiver{} // [] and not null
	for _, r := range g.Set.All() {
		g.Receivers = append(g.Receivers, newReceiver(r, g.Tries[r.Name], box))
	}
	for _, m := range g.Decisions {
		minute := GateMinute{m.Start, make(map[string]int, len(metrics.Decisions))}
		for i, decision := range metrics.Decisions {
			minute.Decisions[decision] = m.Counts[i]
		}
		g.Minutes = append(g.Minutes, minute)
	}
}

// diagnosis is what is wrong with a receiver.
type diagnosis string

const (
	fine        diagnosis = ""
	away        diagnosis = "away"         // it does not take anything
	refusesSome diagnosis = "refuses some" // it takes others
)

// newReceiver says how a receiver stands. box is nil without an inbox.
func newReceiver(r *receiver.Receiver, tries metrics.RecentTries, box *Inbox) Receiver {
	s := Receiver{Name: r.Name, Platforms: append([]string{}, r.Platforms...), Address: r.Address(), LastTry: tries.Last, wrong: diagnose(tries)}
	refuses := fmt.Sprintf("failed %s in the last %d minutes", page.Plural(tries.Failed, "time", "times"), lately)
	if box != nil {
		if stats, ok := box.stats.Receivers[r.Name]; ok {
			s.Waiting, s.Oldest, s.Parked, s.wrong = stats.Pending, stats.Oldest, stats.Parked, diagnoseInbox(&stats)
			refuses = "takes webhooks, but not those of " + page.Plural(stats.Refused, "tenant", "tenants")
		}
		s.Paused = slices.ContainsFunc(box.Paused, func(p store.Pause) bool { return p.Tenant == "" && (p.Receiver == "" || p.Receiver == r.Name) })
	}
	switch {
	case s.Paused: // since then nothing is known of how it does
		s.State, s.Tone = "paused", warn
	case s.wrong == away:
		s.State, s.Tone = failureWords(tries.LastFailed), bad
	case s.wrong == refusesSome:
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

// manyInARow failures, over all tenants, say that the receiver is down, and not that it refuses some
// of them; only without an inbox, whose courier knows better.
const manyInARow = 10

// diagnose says what is wrong with a receiver, by the last tries.
func diagnose(tries metrics.RecentTries) diagnosis {
	switch {
	case tries.OK == 0 && tries.Last != "" && tries.Last != "ok", tries.InARow >= manyInARow:
		return away
	case tries.Failed > 0:
		return refusesSome
	}
	return fine
}

// fewTenants that are refused say nothing of the receiver, though nobody else's webhooks came meanwhile.
const fewTenants = 2

// diagnoseInbox says it by what waits for it: not by its last try alone, which may be that of any tenant.
func diagnoseInbox(box *inbox.ReceiverStats) diagnosis {
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

// GateChart stacks the gate's decisions. What it accepts is queued where there is an inbox, else forwarded; with
// an inbox only what asks a question is forwarded.
func (s *Status) GateChart() page.Chart {
	var starts []time.Time
	var series []page.Series
	minutes := sinceFirst(s.Gate.Decisions, func(m metrics.Minute) bool { return m.Sum() > 0 })
	for _, m := range minutes {
		starts = append(starts, m.Start)
	}
	total, summary := metrics.Sum(minutes, len(minutes)), ""
	for i, decision := range metrics.Decisions {
		n := metrics.Sum(minutes, len(minutes), i)
		if n == 0 && (decision == "forwarded" && s.Inbox != nil || decision == "queued" && s.Inbox == nil) {
			continue
		}
		one := page.Series{Class: "c-" + decision, Label: decision, Total: page.Count(n)}
		for _, m := range minutes {
			one.Add(float64(m.Counts[i]), strconv.Itoa(m.Counts[i]))
		}
		series = append(series, one)
		if n > 0 {
			summary += fmt.Sprintf(", %s %s", page.Count(n), decision)
		}
	}
	return page.NewBars("decisions", "Webhooks per minute",
		page.Plural(total, "webhook", "webhooks")+" in the last hour"+summary+".", starts, series, figure)
}

// Inbox counts what is in the inbox.
type Inbox struct {
	Waiting  int           `json:"waiting"`
	Oldest   time.Duration `json:"oldest"`
	Parked   int           `json:"parked"`
	Refused  int           `json:"refused"`  // webhooks that usher refused, and nobody has dealt with
	Used     int64         `json:"used"`     // bytes that wait or are parked
	Limit    int64         `json:"limit"`    // bytes that may
	HeldUp   []HeldUp      `json:"held_up"`  // who waits behind a webhook that was tried in vain, the longest first
	Homeless int           `json:"homeless"` // how many wait though no receiver takes their platform
	Shared   bool          `json:"shared"`   // with other replicas
	Paused   []store.Pause `json:"paused,omitempty"`
	Error    string        `json:"error,omitempty"` // why it takes nothing in any more
	Unknown  bool          `json:"-"`               // nothing could be read yet: the counts say nothing

	ParkedOnes  Batch `json:"-"`
	RefusedOnes Batch `json:"-"`

	stats inbox.Stats
}

// Batch says more of some webhooks that somebody should look at.
type Batch struct {
	Of   []string // their tenants, the newest first
	Why  string   // what is known of the newest; may be empty
	Link string   // where they are shown
}

// HeldUp is a tenant whose webhooks wait behind one that was tried in vain.
type HeldUp struct {
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Receiver string    `json:"receiver"`
	Webhook  string    `json:"webhook"` // its id
	Tries    int       `json:"tries"`
	Answer   string    `json:"answer"` // the receiver's last, in words
	Next     time.Time `json:"next"`
	Behind   int       `json:"behind"` // how many wait behind it
	Down     bool      `json:"down"`   // the receiver as a whole seems to be
	Paused   bool      `json:"paused"` // somebody has paused its deliveries: it is not tried
}

// NewInbox says how the inbox does. known are the receivers; err is why it takes nothing in, nil: it does.
func NewInbox(s inbox.Stats, held []store.HeldUp, known *receiver.Set, err error) *Inbox {
	out := &Inbox{
		Waiting: s.Pending, Oldest: s.Oldest, Parked: s.Parked, Refused: s.Unread, Used: s.Used, Limit: s.Limit,
		HeldUp: []HeldUp{}, Homeless: s.Receivers[""].Pending, Paused: s.Paused, Unknown: s.Unknown, stats: s, // [] and not null
	}
	for i := range held {
		out.HeldUp = append(out.HeldUp, NewHeldUp(&held[i], known, s.Paused))
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// NewHeldUp says in words who is held up, and by what. known are the receivers, paused is what somebody has paused.
func NewHeldUp(held *store.HeldUp, known *receiver.Set, paused []store.Pause) HeldUp {
	return HeldUp{
		Platform: held.Platform, Tenant: held.Tenant, Receiver: held.Receiver, Webhook: strconv.FormatInt(held.ID, 10),
		Tries: held.Tries, Answer: held.Answer(), Next: held.Next, Behind: held.Behind, Down: held.Down,
		Paused: PausedBy(paused, known, held.Platform, held.Tenant, held.Receiver) != nil,
	}
}

// Name is the tenant as people write it.
func (h *HeldUp) Name() string { return page.TenantName(h.Platform, h.Tenant) }

// NextTry says when it is tried next.
func (h *HeldUp) NextTry() string { return NextTry(h.Next, h.Paused, h.Down) }

// NextTry says when a webhook is tried next. There is no time for a receiver that is down: one webhook after the other
// is tried to see whether it is back, and whose turn it is nobody can say.
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

// shownHeldUp is how many the overview has a line for.
const shownHeldUp = 10

// FirstHeldUp are those that the overview has a line for.
func (s *Inbox) FirstHeldUp() []HeldUp { return s.HeldUp[:min(shownHeldUp, len(s.HeldUp))] }

// MoreHeldUp is how many others there are.
func (s *Inbox) MoreHeldUp() int { return max(0, len(s.HeldUp)-shownHeldUp) }

// AllPaused says whether all deliveries are.
func (s *Inbox) AllPaused() bool {
	return slices.ContainsFunc(s.Paused, func(p store.Pause) bool { return p.Tenant == "" && p.Receiver == "" })
}

// Full says how full the inbox is, in words.
func (s *Inbox) Full() string {
	switch percent := s.Used * 100 / max(s.Limit, 1); {
	case s.Used == 0:
		return "0\u00a0%"
	case percent == 0:
		return "<\u00a01\u00a0%"
	default:
		return fmt.Sprintf("%d\u00a0%%", percent)
	}
}

func (s *Inbox) troubles() (all []Trouble) {
	if s.Error != "" {
		fix := "If the disk of the file in USHER_WEBHOOK_INBOX is full, free some space: usher then goes on by itself. Otherwise fix the disk, then restart usher."
		if s.Shared {
			fix = "Check the database in USHER_WEBHOOK_INBOX: when it is back, usher goes on by itself."
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
		all = append(all, Trouble{warn, s.ParkedOnes.words(s.Parked) + are,
			said("The receiver answered", s.ParkedOnes.Why) + "usher does not retry what is parked. Fix the receiver, then send it again.", s.ParkedOnes.Link})
	}
	if s.Refused > 0 {
		all = append(all, s.RefusedOnes.refused(s.Refused, "and send it again, or open it here, then accept it as it is or discard it."))
	}
	return all
}

// refused is about webhooks of the right sender whose content usher refused.
func (b *Batch) refused(n int, do string) Trouble {
	return Trouble{bad, "usher refused " + b.words(n),
		said("The last one", b.Why) + "It may be a change that nobody sends again. Correct it in the billing service " + do, b.Link}
}

// words counts them, and names their tenants.
func (b *Batch) words(n int) string {
	count := page.Plural(n, "webhook", "webhooks")
	if len(b.Of) == 0 {
		return count
	}
	return count + " of " + page.FirstFew(b.Of)
}

// said quotes somebody's words, if there are any.
func said(who, words string) string {
	if words == "" {
		return ""
	}
	return who + ": " + page.Excerpt(words) + ". "
}
