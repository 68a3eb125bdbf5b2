package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/journal"
	"usher/internal/admin/page"
	"usher/internal/changes"
	"usher/internal/inbox"
	"usher/webhookgate"
)

// Webhook is a line of GET /api/webhooks: one in the inbox, or a decision of the gate
// that the inbox never saw.
type Webhook struct {
	ID       string    `json:"id"` // a number: in the inbox; with a d before it: one of the last decisions
	Received time.Time `json:"received"`
	Webhook  string    `json:"webhook,omitempty"`
	Type     string    `json:"type,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Tenant   string    `json:"tenant,omitempty"`
	Decision string    `json:"decision"`
	State    string    `json:"state,omitempty"`  // in the inbox
	Status   int       `json:"status,omitempty"` // that the sender was answered
	Why      string    `json:"why,omitempty"`
	Tries    int       `json:"tries"`
	Answer   string    `json:"answer,omitempty"` // the receiver's last, in words
	From     string    `json:"from,omitempty"`
	Changes  []string  `json:"changes,omitempty"` // against the tenant's snapshot before it, in words
	First    bool      `json:"first,omitempty"`   // none before it is known
}

// Outcome is where it stands, in a word.
func (w *Webhook) Outcome() string { return cmp.Or(w.State, w.Decision) }

// WebhookDetail is the answer of GET /api/webhooks/{id}.
type WebhookDetail struct {
	Webhook
	Previous string              `json:"previous,omitempty"` // id of the snapshot before it
	Changed  time.Time           `json:"changed,omitzero"`   // when it came into its state
	Again    time.Time           `json:"again,omitzero"`     // when it was last sent again by hand
	Attempts []inbox.Attempt     `json:"attempts,omitempty"`
	Faults   []webhookgate.Fault `json:"faults,omitempty"`
	Original string              `json:"duplicate_of,omitempty"` // a webhook-id
	Header   http.Header         `json:"header,omitempty"`
	Payload  json.RawMessage     `json:"payload,omitempty"`

	lines []changes.Line
	body  []byte // the payload as it came
}

// WebhookList is the answer of GET /api/webhooks.
type WebhookList struct {
	Webhooks []Webhook `json:"webhooks"`       // the newest first
	Next     string    `json:"next,omitempty"` // before= of those that follow

	next cursor // the same, for who goes on without an address
}

// cursor is where a list went on: the ids of the last that were shown, in the inbox and
// among the decisions.
type cursor struct{ inbox, journal uint64 }

func (c cursor) String() string { return fmt.Sprintf("%d.%d", c.inbox, c.journal) }

// pageSize is how many webhooks a page has, and maxPage what may be asked for.
const (
	pageSize = 50
	maxPage  = 500
)

// webhooks lists what is in the inbox and what the gate decided, put together by time.
func (h *Handler) webhooks(s Selection) (WebhookList, error) {
	entries, err := h.fromInbox(s)
	if err != nil {
		return WebhookList{}, err
	}
	decisions := h.fromJournal(s)
	list := WebhookList{Webhooks: []Webhook{}, next: s.before}
	for len(list.Webhooks) < s.limit && len(entries)+len(decisions) > 0 {
		if len(decisions) == 0 || len(entries) > 0 && !entries[0].Received.Before(decisions[0].At) {
			list.Webhooks = append(list.Webhooks, h.ofInbox(&entries[0]))
			list.next.inbox, entries = entries[0].ID, entries[1:]
		} else {
			list.Webhooks = append(list.Webhooks, h.ofJournal(decisions[0]))
			list.next.journal, decisions = decisions[0].Seq, decisions[1:]
		}
	}
	if len(entries)+len(decisions) > 0 {
		list.Next = list.next.String()
	}
	return list, nil
}

func (h *Handler) fromInbox(s Selection) ([]inbox.Entry, error) {
	if h.cfg.Inbox == nil || s.Decision != "" && s.Decision != "queued" {
		return nil, nil
	}
	return h.cfg.Inbox.List(inbox.Filter{
		State: inbox.State(s.State), Tenant: s.code, Platform: s.platform, Since: s.From, Until: s.To,
		Search: s.Search, Before: s.before.inbox, Limit: s.limit + 1,
	})
}

func (h *Handler) fromJournal(s Selection) []*journal.Entry {
	if h.cfg.Journal == nil || s.State != "" {
		return nil
	}
	return h.cfg.Journal.List(journal.Filter{
		Decision: s.Decision, Tenant: s.code, Platform: s.platform, Since: s.From, Until: s.To,
		Search: s.Search, Before: s.before.journal, Limit: s.limit + 1,
	})
}

// ofInbox makes a line of an entry. What changed is read for those alone that are shown.
func (h *Handler) ofInbox(e *inbox.Entry) Webhook {
	w := bare(e)
	if item, err := h.cfg.Inbox.Show(e.ID); err == nil {
		w.compare(item)
	}
	return w
}

func bare(e *inbox.Entry) Webhook {
	w := Webhook{
		ID: strconv.FormatUint(e.ID, 10), Received: e.Received, Webhook: e.Webhook, Type: e.Type,
		Platform: e.Platform, Tenant: e.Tenant, Decision: "queued", State: string(e.State), Why: e.Why, Tries: e.Tries,
	}
	if n := len(e.Attempts); n > 0 {
		w.Answer = answerWords(e.Attempts[n-1])
	}
	return w
}

func (w *Webhook) compare(item *inbox.Item) {
	var previous []byte
	if item.Previous != nil {
		previous = item.Previous.Body
	}
	w.First = previous == nil
	w.Changes = changes.Between(previous, item.Body)
}

func (h *Handler) ofJournal(e *journal.Entry) Webhook {
	w := Webhook{
		ID: "d" + strconv.FormatUint(e.Seq, 10), Received: e.At, Webhook: e.Webhook, Type: e.Type, Platform: e.Platform,
		Tenant: e.Tenant, Decision: e.Decision, Status: e.Status, Why: e.Why, Tries: e.Tries, From: e.From,
	}
	switch {
	case e.Receiver != 0:
		w.Answer = statusWords(e.Receiver)
	case e.Decision == "forwarded":
		w.Answer = "accepted"
	case e.Tries > 0:
		w.Answer = "no answer"
	}
	if e.Payload == nil {
		return w
	}
	_, previous := h.cfg.Journal.Get(e.Seq)
	if w.First = previous == nil; w.First {
		w.Changes = changes.Between(nil, e.Payload)
	} else {
		w.Changes = changes.Between(previous.Payload, e.Payload)
	}
	return w
}

// answerWords says what the receiver answered to a try.
func answerWords(a inbox.Attempt) string {
	switch {
	case a.Status == 0:
		return cmp.Or(a.Error, "no answer")
	case a.Answer != "":
		return strconv.Itoa(a.Status) + ": " + page.Beginning(a.Answer)
	}
	return statusWords(a.Status)
}

func statusWords(status int) string {
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}

// webhook returns one, by its id as it stands in an address.
func (h *Handler) webhook(id string) (*WebhookDetail, error) {
	if seq, ok := strings.CutPrefix(id, "d"); ok && h.cfg.Journal != nil {
		n, err := strconv.ParseUint(seq, 10, 64)
		if err != nil {
			return nil, inbox.ErrNotFound
		}
		return h.decision(n)
	}
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil || h.cfg.Inbox == nil {
		return nil, inbox.ErrNotFound
	}
	item, err := h.cfg.Inbox.Show(n)
	if err != nil {
		return nil, err
	}
	d := &WebhookDetail{
		Webhook: bare(&item.Entry), Changed: item.Changed, Again: item.Again, Attempts: item.Attempts,
		Header: shown(item.Header), Payload: payload(item.Body), body: item.Body,
	}
	d.compare(item)
	if item.Previous != nil {
		d.Previous = strconv.FormatUint(item.Previous.ID, 10)
		d.lines, _ = changes.Lines(item.Previous.Body, item.Body)
	}
	return d, nil
}

func (h *Handler) decision(seq uint64) (*WebhookDetail, error) {
	e, previous := h.cfg.Journal.Get(seq)
	if e == nil {
		return nil, &refusal{http.StatusNotFound, "this decision is not remembered any more: the last 1,000 are"}
	}
	d := &WebhookDetail{Webhook: h.ofJournal(e), Faults: e.Faults, Original: e.DuplicateOf}
	if e.Payload != nil {
		d.Header, d.Payload, d.body = shown(e.Header), payload(e.Payload), e.Payload
	}
	if previous != nil {
		d.Previous = "d" + strconv.FormatUint(previous.Seq, 10)
		d.lines, _ = changes.Lines(previous.Payload, e.Payload)
	}
	return d, nil
}
