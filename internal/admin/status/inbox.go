package status

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// InboxState is how the inbox does.
type InboxState struct {
	Stats  inbox.Stats
	HeldUp []inbox.HeldUp // of what this replica delivers
	Err    error          // why it takes nothing in; nil: it does
	Shared bool           // with other replicas
}

// Inbox counts what is in the inbox.
type Inbox struct {
	Waiting    int           `json:"waiting"`
	Oldest     time.Duration `json:"oldest"`
	Parked     int           `json:"parked"`
	Used       int64         `json:"used"`       // bytes that wait or are parked
	Limit      int64         `json:"limit"`      // bytes that may
	HeldUp     []HeldUp      `json:"held_up"`    // who waits behind a webhook that was tried in vain, the longest first
	Homeless   int           `json:"homeless"`   // how many wait though no receiver takes their platform
	Delivering bool          `json:"delivering"` // from here, and not by another replica
	Shared     bool          `json:"shared"`     // with other replicas: the figures are of what this one delivers
	Paused     []inbox.Pause `json:"paused,omitempty"`
	Error      string        `json:"error,omitempty"` // why it takes nothing in any more
	Unknown    bool          `json:"-"`               // nothing could be read yet: the counts say nothing
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

func newInbox(s *InboxState, known Receivers) *Inbox {
	out := &Inbox{
		Waiting: s.Stats.Pending, Oldest: s.Stats.Oldest, Parked: s.Stats.Parked, Used: s.Stats.Used, Limit: s.Stats.Limit,
		HeldUp: []HeldUp{}, Homeless: s.Stats.Receivers[""].Pending, Delivering: s.Stats.Delivering, Shared: s.Shared, // [] and not null
		Paused: s.Stats.Paused, Unknown: s.Stats.Unknown,
	}
	for i := range s.HeldUp {
		out.HeldUp = append(out.HeldUp, NewHeldUp(&s.HeldUp[i], known, s.Stats.Paused))
	}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	return out
}

// NewHeldUp says in words who is held up, and by what. known are the receivers, paused is what somebody has paused.
func NewHeldUp(held *inbox.HeldUp, known Receivers, paused []inbox.Pause) HeldUp {
	l := &held.Lane
	return HeldUp{
		Platform: l.Platform, Tenant: l.Tenant, Receiver: held.Receiver, Webhook: strconv.FormatUint(held.ID, 10),
		Tries: held.Tries, Answer: held.Last.Words(), Next: held.Next, Behind: held.Behind, Down: held.Down,
		Paused: known.PausedBy(paused, l.Platform, l.Tenant, held.Receiver) != nil,
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

// FirstHeldUp are those that the overview has a line for, and MoreHeldUp is how many others there are.
func (s *Inbox) FirstHeldUp() []HeldUp { return s.HeldUp[:min(shownHeldUp, len(s.HeldUp))] }

// MoreHeldUp counts; see FirstHeldUp.
func (s *Inbox) MoreHeldUp() int { return max(0, len(s.HeldUp)-shownHeldUp) }

// AllPaused says whether all deliveries are.
func (s *Inbox) AllPaused() bool {
	return slices.ContainsFunc(s.Paused, func(p inbox.Pause) bool { return p.Tenant == "" && p.Receiver == "" })
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
		all = append(all, Trouble{bad, "The inbox takes no webhooks: " + s.Error,
			"Senders get 503, and usher is not ready. Nothing that was answered 200 is lost. " + s.whatToFix(), ""})
	}
	if s.Limit > 0 && s.Used > s.Limit/10*9 {
		all = append(all, Trouble{bad, fmt.Sprintf("The inbox is nearly full: %s of %s", page.Bytes(s.Used), page.Bytes(s.Limit)),
			"When it is full, senders get 503. Fix the receivers so that they take what waits, discard what they will never take, or raise USHER_WEBHOOK_INBOX_MAX_BYTES.", "/webhooks?outcome=waiting"})
	}
	if s.Homeless > 0 {
		all = append(all, Trouble{bad, page.Plural(s.Homeless, "webhook waits, but no receiver takes its platform any more", "webhooks wait, but no receiver takes their platform any more"),
			"Give that platform to a receiver (USHER_WEBHOOK_RECEIVERS_n_PLATFORMS), or set USHER_WEBHOOK_FORWARD_URL, then restart usher.", "/webhooks?outcome=waiting"})
	}
	if s.Parked > 0 {
		all = append(all, Trouble{warn, page.Plural(s.Parked, "webhook is parked", "webhooks are parked"),
			"The receiver refused what is parked, and usher does not retry it. See why, fix the receiver, then send it again.", "/webhooks?outcome=parked"})
	}
	return all
}

func (s *Inbox) whatToFix() string {
	if s.Shared {
		return "Check the NATS servers in USHER_WEBHOOK_INBOX: when they are back, usher goes on by itself."
	}
	return "Fix the disk of the file in USHER_WEBHOOK_INBOX, then restart usher."
}
