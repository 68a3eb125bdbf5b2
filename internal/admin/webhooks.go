package admin

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"usher/internal/admin/recent"
	"usher/internal/admin/status"
	"usher/internal/inbox/store"
	"usher/internal/snapshot"
	"usher/webhookgate/content"
)

// Webhook is a line of GET /api/webhooks: one in the inbox, or a decision of the gate
// that the inbox never saw.
type Webhook struct {
	ID       string      `json:"id"` // a number: in the inbox; with a d before it: one of the last decisions
	Received time.Time   `json:"received"`
	Webhook  string      `json:"webhook,omitempty"` // what the receiver gets as webhook-id
	Type     string      `json:"type,omitempty"`
	Platform string      `json:"platform,omitempty"`
	Tenant   string      `json:"tenant,omitempty"`
	Decision string      `json:"decision"`
	State    store.State `json:"state,omitempty"`  // in the inbox
	Changed  time.Time   `json:"changed,omitzero"` // when it came into its state
	Again    time.Time   `json:"again,omitzero"`   // when it was last sent again by hand
	Status   int         `json:"status,omitempty"` // that the sender was answered
	Why      string      `json:"why,omitempty"`
	Tries    int         `json:"tries"`              // at the receiver, since it came or was last sent again by hand
	Receiver string      `json:"receiver,omitempty"` // that was last tried; once delivered: that took it
	Answer   string      `json:"answer,omitempty"`   // the receiver's last, in words
	From     string      `json:"from,omitempty"`
	Times    int         `json:"times,omitempty"` // of one that was refused: how often it came

	// Of one that waits:
	Next   time.Time `json:"next,omitzero"`     // its next try
	HeldBy string    `json:"held_by,omitempty"` // the webhook of its tenant that failed, and is tried first
	Behind int       `json:"behind,omitempty"`  // how many wait behind it, as it failed
	Down   bool      `json:"down,omitempty"`    // the receiver as a whole seems to be: it is tried when that is back
	Paused bool      `json:"paused,omitempty"`  // somebody has paused its deliveries

	NoReceiver bool `json:"no_receiver,omitempty"` // its receiver is gone from the settings

	// Not in lists of more than 500:
	Changes []string `json:"changes,omitempty"` // against what the receiver took before it, in words; what one that was refused would have
	First   bool     `json:"first,omitempty"`   // nothing that it took before is known
}

// Outcome is where it stands, in a word.
func (w *Webhook) Outcome() string { return cmp.Or(string(w.State), w.Decision) }

// NextTry says when one that waits is tried next; empty: nobody knows.
func (w *Webhook) NextTry() string {
	if w.waits() && (w.Paused || w.HeldBy == "" && !w.Next.IsZero()) {
		return status.NextTry(w.Next, w.Paused, w.Down)
	}
	return ""
}

// WebhookList is the answer of GET /api/webhooks.
type WebhookList struct {
	Webhooks []Webhook     `json:"webhooks"`       // the newest first
	Next     string        `json:"next,omitempty"` // before= of those that follow
	Paused   []store.Pause `json:"paused,omitempty"`
	Alike    []string      `json:"alike,omitempty"` // nobody is called like the tenant that was asked for: those whose names are alike

	next cursor // the same as Next, not as text
}

// cursor is where a list went on: the ids of the last that were shown, in the inbox and
// among the decisions.
type cursor struct{ inbox, decision int64 }

func (c cursor) String() string { return fmt.Sprintf("%d.%d", c.inbox, c.decision) }

// pageSize is how many webhooks a page has. maxPage is up to how many it is said of each what it changed: for that all
// of it has to be read.
const (
	pageSize = 50
	maxPage  = 500
)

// webhooks lists what is in the inbox and what the gate decided, put together by time.
func (h *Handler) webhooks(s Selection) (WebhookList, error) {
	compared := s.limit > 0 && s.limit <= maxPage
	entries, err := h.fromInbox(s, compared)
	if err != nil {
		return WebhookList{}, err
	}
	decided := h.fromDecisions(s)
	list := WebhookList{Webhooks: []Webhook{}, next: s.before}
	for (s.limit == 0 || len(list.Webhooks) < s.limit) && len(entries)+len(decided) > 0 {
		if len(decided) == 0 || len(entries) > 0 && !entries[0].Received.Before(decided[0].At) {
			w := bare(&entries[0].Entry)
			w.compare(entries[0])
			list.Webhooks = append(list.Webhooks, w)
			list.next.inbox, entries = entries[0].ID, entries[1:]
		} else {
			list.Webhooks = append(list.Webhooks, h.ofDecision(decided[0], compared))
			list.next.decision, decided = decided[0].Seq, decided[1:]
		}
	}
	if len(entries)+len(decided) > 0 {
		list.Next = list.next.String()
	}
	h.whyWaiting(list.Webhooks)
	return list, nil
}

func (h *Handler) fromInbox(s Selection, compared bool) (items []*store.Item, err error) {
	f, possible := s.filter()
	if h.cfg.Inbox == nil || !possible {
		return nil, nil
	}
	if f.Limit > 0 {
		f.Limit++ // is there more?
	}
	if compared {
		return h.cfg.Inbox.Items(f)
	}
	entries, err := h.cfg.Inbox.List(f)
	for _, e := range entries {
		items = append(items, &store.Item{Entry: e})
	}
	return items, err
}

func (h *Handler) fromDecisions(s Selection) []*recent.Entry {
	if h.cfg.Decisions == nil || s.kept || s.Outcome != "" && s.decision() == "" {
		return nil
	}
	f := recent.Filter{
		Decision: s.Outcome, Tenant: s.tenant.Tenant, Platform: s.tenant.Platform, Since: s.Since, Until: s.Until,
		Search: s.Search, Before: s.before.decision, Limit: s.limit,
	}
	if f.Limit > 0 {
		f.Limit++
	}
	return h.cfg.Decisions.List(f)
}

// bare makes a line of an entry, but for what it takes to read all of it.
func bare(e *store.Entry) Webhook {
	w := Webhook{
		ID: strconv.FormatInt(e.ID, 10), Received: e.Received, Webhook: e.Webhook, Type: e.Type,
		Platform: e.Platform, Tenant: e.Tenant, Decision: "queued", State: e.State, Changed: e.Changed, Again: e.Again,
		Why: e.Why, Tries: e.Tries, Receiver: e.Receiver,
	}
	if n := len(e.Attempts); n > 0 {
		w.Answer = e.Attempts[n-1].Words()
	}
	if e.Rejected() {
		w.Decision, w.Status, w.From, w.Times = "rejected", e.Code, e.From, e.Times
	}
	if e.State == store.Refused {
		w.Why = content.Words(e.Faults)
	}
	if w.waits() {
		w.Next = e.Next
	}
	return w
}

// compare says what it changed. A record that is damaged has no content, and nothing is known of that.
func (w *Webhook) compare(item *store.Item) {
	var previous []byte
	if item.Previous != nil {
		previous = item.Previous.Body
	}
	switch {
	case item.Body == nil, item.State == store.Accepted: // what was taken in has a line of its own
	case item.Rejected():
		w.Changes = snapshot.Would(previous, item.Body)
	default:
		w.First = previous == nil
		w.Changes = snapshot.Between(previous, item.Body)
	}
}

func (h *Handler) ofDecision(e *recent.Entry, compared bool) Webhook {
	w := Webhook{
		ID: "d" + strconv.FormatInt(e.Seq, 10), Received: e.At, Webhook: e.Webhook, Type: e.Type, Platform: e.Platform,
		Tenant: e.Tenant, Decision: e.Decision, Status: e.Status, Why: e.Why, Tries: e.Tries, From: e.From,
	}
	switch {
	case e.Decision == "forwarded" && e.Status >= 300: // the receiver's answer to a question
		w.Answer = store.Attempt{Status: e.Status}.Words()
	case e.Decision == "forwarded":
		w.Answer = "accepted"
	case e.Tries > 0 || e.Receiver != 0:
		w.Answer = store.Attempt{Status: e.Receiver}.Words()
	}
	if !compared {
		return w
	}
	payload, previous := e.Payload(), h.cfg.Decisions.Payload(e.Previous)
	switch {
	case payload == nil:
	case e.Decision == "rejected":
		w.Changes = snapshot.Would(previous, payload)
	default:
		w.First, w.Changes = previous == nil, snapshot.Between(previous, payload)
	}
	return w
}
