package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/webhookgate"
)

// Webhook is a webhook in a list: one of the inbox or, without an inbox, one of the gate's last decisions.
type Webhook struct {
	ID       string      `json:"id"` // a number in the inbox; d and a number for a decision
	Received time.Time   `json:"received"`
	UUID     string      `json:"webhook,omitempty"` // the webhook-id that the receiver gets
	Type     string      `json:"type,omitempty"`
	Platform string      `json:"platform,omitempty"`
	Tenant   string      `json:"tenant,omitempty"`
	Decision string      `json:"decision"`
	State    state.State `json:"state,omitempty"`    // only in the inbox
	Changed  time.Time   `json:"changed,omitzero"`   // when it got this state
	Again    time.Time   `json:"again,omitzero"`     // when somebody last redelivered it
	Status   int         `json:"status,omitempty"`   // of the answer to the sender
	Why      string      `json:"why,omitempty"`      // the reason for its state or decision
	Tries    int         `json:"tries"`              // since it came, or since somebody last redelivered it
	Receiver string      `json:"receiver,omitempty"` // name of the receiver that was last tried
	Answer   string      `json:"answer,omitempty"`   // the receiver's last answer, in words
	From     string      `json:"from,omitempty"`     // address of the sender
	Source   string      `json:"source,omitempty"`   // reconcile: usher made it from what the billing service said

	// Only while it waits:
	//
	// Next is when usher tries it; while it is paused, the end of the pause, if it has one.
	Next   time.Time `json:"next,omitzero"`
	HeldBy string    `json:"held_by,omitempty"` // id of the tenant's webhook that failed, and that must go first
	Behind int       `json:"behind,omitempty"`  // if it is the one that failed: how many webhooks wait behind it
	// Down: the receiver seems to be down as a whole; usher tries it when that is back.
	Down       bool `json:"down,omitempty"`
	Paused     bool `json:"paused,omitempty"`      // its deliveries are paused
	NoReceiver bool `json:"no_receiver,omitempty"` // the settings have no receiver for its platform any more

	Unacceptable string `json:"unacceptable,omitempty"` // if it is invalid: why it can't be accepted; not in lists

	HeldUp *status.HeldUp `json:"-"` // the webhook that holds up the tenant's queue, or nil

	// Changes says what it changed in words, compared with what the receiver took before; if it is invalid,
	// what it would have changed.
	Changes []string `json:"changes,omitempty"`
	First   bool     `json:"first,omitempty"` // usher knows of nothing that the receiver took before
}

// Outcome returns the state in the inbox, or the decision of the gate.
func (w *Webhook) Outcome() string { return cmp.Or(string(w.State), w.Decision) }

func (w *Webhook) waits() bool { return w.State == state.Waiting }

// NextTry says when usher tries a webhook that waits, or nothing if that is not known.
func (w *Webhook) NextTry() string {
	if w.waits() && !w.NoReceiver && (w.Paused || w.HeldBy == "" && !w.Next.IsZero()) {
		return status.NextTry(w.Next, w.Paused, w.Down)
	}
	return ""
}

func (w *Webhook) lane() webhookgate.LaneName { return laneOf(w.Platform, w.Tenant, w.Type) }

// laneOf returns the lane of a webhook. Only a webhook without a tenant has a lane by its type.
func laneOf(platform, tenant, kind string) webhookgate.LaneName {
	if tenant != "" {
		kind = ""
	}
	return webhookgate.LaneName{Platform: platform, Tenant: tenant, Type: kind}
}

// newWebhook returns an entry of the inbox, without Changes and what whyWaiting adds.
func newWebhook(e *lane.Webhook) Webhook {
	w := Webhook{
		ID: strconv.FormatInt(e.ID, 10), Received: e.Received, UUID: e.UUID, Type: e.Type,
		Platform: e.Platform, Tenant: e.Tenant, Decision: "queued", State: e.State, Changed: e.Changed, Again: e.Redelivered,
		Why: e.Why, Tries: e.Tries, Receiver: e.Receiver, Source: e.Source,
	}
	if n := len(e.Tried); n > 0 {
		w.Answer = e.Tried[n-1].Words()
	}
	if e.Rejected() {
		w.Decision = "rejected"
		w.Status, w.From = e.Code, e.From
	}
	if e.State == state.Invalid {
		w.Why, w.Changed = text.Clip(content.Summary(e.Faults), maxText), e.Received // e.Changed is when it last came
	}
	if w.waits() {
		w.Next = e.Next
	}
	return w
}

// withDenial returns an entry of the inbox that has its content, with why it can't be accepted.
func (h *Handler) withDenial(e *lane.Webhook) Webhook {
	w := newWebhook(e)
	if err := h.cfg.Inbox.Acceptable(e); err != nil && e.State == state.Invalid {
		w.Unacceptable = text.Clip(err.Error(), maxText)
	}
	return w
}

// compare sets what the webhook changed. body is nil if it is not kept or damaged; then nothing is
// known. Large payloads take many times their size while they are compared, so only a few are at once,
// however many people look.
func (h *Handler) compare(w *Webhook, previous, body []byte) {
	h.comparing <- struct{}{}
	defer func() { <-h.comparing }()
	switch {
	case body == nil, w.State == state.Replaced: // an accepted one was taken in as a new webhook, which has the changes
	case w.Decision == "rejected":
		w.Changes = snapshot.Would(previous, body)
	default:
		w.First, w.Changes = previous == nil, snapshot.Between(previous, body)
	}
}

// WebhookList is the answer of GET /api/webhooks.
type WebhookList struct {
	Webhooks []Webhook     `json:"webhooks"`       // the newest first
	Next     string        `json:"next,omitempty"` // the parameter before of the next page
	Paused   []inbox.Pause `json:"paused,omitempty"`
}

// pageSize is how many webhooks a page has, and maxPage how many a list of the API has at most.
const (
	pageSize = 50
	maxPage  = 500
)

// webhooks lists what is selected, the newest first.
func (h *Handler) webhooks(ctx context.Context, s selection) (list WebhookList, err error) {
	f := s.filter()
	f.Limit++ // one more shows that there is a next page
	list.Webhooks = []Webhook{}
	add := func(w Webhook, number int64) (more bool) {
		if len(list.Webhooks) == s.limit {
			list.Next = strconv.FormatInt(s.before, 10)
			return false
		}
		list.Webhooks, s.before = append(list.Webhooks, w), number
		return true
	}
	if h.cfg.Inbox == nil {
		for _, e := range h.cfg.Decisions.list(f) {
			add(e.Webhook, e.seq)
		}
		return list, nil
	}
	// It keeps none of the payloads: they may be large.
	err = h.cfg.Inbox.Each(ctx, f, true, func(item *lane.Webhook) bool {
		w := newWebhook(item)
		h.compare(&w, previousBody(item), item.Body)
		return add(w, item.ID)
	})
	h.whyWaiting(list.Webhooks)
	return list, err
}

// previousBody returns the payload that a webhook is compared with, or nil.
func previousBody(item *lane.Webhook) []byte {
	if item.Previous == nil {
		return nil
	}
	return item.Previous.Body
}

// whyWaiting adds to webhooks that wait what they wait for: another webhook of their tenant, a
// receiver, or the end of a pause.
func (h *Handler) whyWaiting(list []Webhook) {
	if !slices.ContainsFunc(list, func(w Webhook) bool { return w.waits() }) {
		return
	}
	paused, known, held := h.paused(), h.cfg.Receivers, h.heldUp()
	// A replica without a gate does not know which receivers there are.
	delivers := h.cfg.Gate != nil
	for i := range list {
		w := &list[i]
		if !w.waits() {
			continue
		}
		if p := status.PausedBy(paused, known, w.Platform, w.Tenant, w.Receiver); p != nil {
			w.Paused, w.Next = true, p.Until
		}
		if w.NoReceiver = delivers && known.For(w.Platform) == nil; !w.NoReceiver {
			w.HeldUp = held[w.lane()]
		}
		switch {
		case w.HeldUp == nil:
		case w.HeldUp.Webhook == w.ID:
			w.Behind, w.Down = w.HeldUp.Behind, w.HeldUp.Down
		default:
			w.HeldBy = w.HeldUp.Webhook
		}
	}
}

// heldUp returns the queues that are held up.
func (h *Handler) heldUp() map[webhookgate.LaneName]*status.HeldUp {
	all := make(map[webhookgate.LaneName]*status.HeldUp)
	if h.cfg.Inbox == nil {
		return all
	}
	known, paused := h.cfg.Receivers, h.paused()
	for _, held := range h.cfg.Inbox.HeldUp() {
		all[laneOf(held.Platform, held.Tenant, held.Kind)] = new(status.NewHeldUp(&held, known, paused))
	}
	return all
}

// webhooksPage is a list of webhooks, with the form that selects them.
type webhooksPage struct {
	WebhookList
	selection
	Off      bool // there is neither a gate nor an inbox
	HasInbox bool
	Tail     bool     // it is not the first page
	Older    string   // address of the next page; empty if there is none
	Newest   string   // address of the first page
	Choices  []string // of Outcome

	Offers []page.Offer // what can be done to all of these
}

func (h *Handler) webhooksPage(r *http.Request, s selection) (any, error) {
	list, err := h.webhooks(r.Context(), s)
	if err != nil {
		return nil, err
	}
	query := s.Query()
	p := &webhooksPage{
		WebhookList: list, selection: s, Off: !h.hasWebhooks(), HasInbox: h.cfg.Inbox != nil,
		Tail: s.before != 0, Newest: "/webhooks?" + query.Encode(), Choices: h.outcomes(),
	}
	if p.HasInbox && s.Narrow() && len(list.Webhooks) > 0 {
		p.Offers = h.offers(target{all: &s}, OnWebhooks)
	}
	if list.Next != "" {
		query.Set("before", list.Next)
		p.Older = "/webhooks?" + query.Encode()
	}
	return &page.Page{Name: "webhooks", Title: "Webhooks", Section: "webhooks", Live: true, Body: p}, nil
}

// apiWebhooks is GET /api/webhooks.
func (h *Handler) apiWebhooks(r *http.Request, s selection) (any, error) {
	if s.tenant.Tenant != "" {
		// One that is unknown has no webhooks, and a name that fits two is refused.
		_, err := h.knownTenant(r.Context(), s.tenant)
		if refused, ok := errors.AsType[*refusal](err); ok && refused.status == http.StatusConflict {
			return nil, err
		}
	}
	list, err := h.webhooks(r.Context(), s)
	list.Paused = h.paused()
	return list, err
}

// WebhookDetail is the answer of GET /api/webhooks/{id}.
type WebhookDetail struct {
	Webhook
	Previous string `json:"previous,omitempty"` // id of the snapshot with which Changes compares it
	// Untaken is the id of the tenant's snapshot right before it, if the receiver did not take that.
	Untaken string `json:"untaken,omitempty"`
	// Counted is how many of Tries count towards USHER_WEBHOOK_INBOX_TRIES: not those that say that the
	// receiver is broken.
	Counted  int             `json:"counted,omitempty"`
	Tried    []lane.Try      `json:"tried,omitempty"`        // the last 20
	Faults   []content.Fault `json:"faults,omitempty"`       // why it is invalid
	Original string          `json:"duplicate_of,omitempty"` // a webhook-id
	// Header is as the receiver gets it, without headers that may hold a secret.
	Header  http.Header     `json:"header,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`          // see text.JSONPayload
	LeftOut int             `json:"payload_left_out,omitempty"` // how many bytes of the payload are not in Payload

	raw    []byte      // the body as it came; nil if it is not kept
	former []byte      // the body with which Changes compares it; nil if there is none
	sent   http.Header // with headers that may hold a secret
}

// webhook returns a webhook by its id in an address.
func (h *Handler) webhook(ctx context.Context, id string) (*WebhookDetail, error) {
	d, err := h.withoutContent(ctx, id)
	if err != nil {
		return nil, err
	}
	h.addContent(d)
	return d, nil
}

// withoutContent returns a webhook without what addContent adds, which takes much longer.
func (h *Handler) withoutContent(ctx context.Context, id string) (*WebhookDetail, error) {
	number, decided := strings.CutPrefix(id, "d")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || decided && h.cfg.Decisions == nil || !decided && h.cfg.Inbox == nil {
		return nil, inbox.ErrNotFound
	}
	if decided {
		return h.decision(n)
	}
	item, err := h.cfg.Inbox.Show(ctx, n)
	if err != nil {
		return nil, err
	}
	list := []Webhook{h.withDenial(item)}
	h.whyWaiting(list)
	d := &WebhookDetail{
		Webhook: list[0],
		Counted: item.Counted,
		Tried:   item.Tried,
		Faults:  shownFaults(item.Faults, content.MaxFaults),
		raw:     item.Body,
		former:  previousBody(item),
		sent:    item.Header,
	}
	var taken int64
	if item.Previous != nil {
		taken = item.Previous.ID
		d.Previous = strconv.FormatInt(taken, 10)
	}
	if item.Before != 0 && item.Before != taken {
		d.Untaken = strconv.FormatInt(item.Before, 10)
	}
	return d, nil
}

// decision returns one of the gate's last decisions.
func (h *Handler) decision(seq int64) (*WebhookDetail, error) {
	e := h.cfg.Decisions.get(seq)
	if e == nil {
		return nil, &refusal{http.StatusNotFound,
			"usher no longer remembers this decision: it remembers the last 1,000"}
	}
	return new(e.WebhookDetail), nil
}

// addContent adds the payload, what it changed, and the header as the receiver gets it.
func (h *Handler) addContent(d *WebhookDetail) {
	h.compare(&d.Webhook, d.former, d.raw)
	if d.raw == nil {
		return
	}
	d.Payload, d.LeftOut = text.JSONPayload(d.raw)
	d.Header = withoutSecrets(d.sent)
	d.Header.Set("Webhook-Id", d.UUID)
	d.Header.Set("Webhook-Timestamp", "[each try has its own]")
	if n := len(d.Tried); n > 0 {
		d.Header.Set("Webhook-Timestamp", strconv.FormatInt(d.Tried[n-1].At.Unix(), 10))
	}
	if r := h.cfg.Receivers.For(d.Platform); r != nil && r.ForwardSigningKey != nil {
		d.Header.Set("Webhook-Signature", "[redacted]")
	}
}

// secretNames are parts of the names of headers that may hold a secret. The gate has already removed its own
// secrets, but a sender may have others, for the receiver.
var secretNames = []string{
	"auth", "cookie", "token", "secret", "pass", "signature", "key", "jwt", "session", "credential",
}

// withoutSecrets returns a header without the values that may be a secret.
func withoutSecrets(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		normal := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		secret := slices.ContainsFunc(secretNames, func(part string) bool { return strings.Contains(normal, part) })
		if normal == "idempotency-key" || !secret {
			out[name] = values
		}
	}
	return out
}

// webhookPage is the page of one webhook.
type webhookPage struct {
	*WebhookDetail
	Indented string // the payload
	NotShown int64  // how many bytes of the payload are not in Indented
	Before   string // id of the tenant's webhook before this one; empty if there is none
	After    string // and of the one after it
	Offers   []page.Offer
	ToTenant string // in words, what its tenant's page offers
}

// InInbox reports whether the webhook is in the inbox; else it is one of the gate's decisions.
func (w *Webhook) InInbox() bool { return w.State != "" }

func (h *Handler) webhookPage(r *http.Request) (any, error) {
	d, err := h.webhook(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	body := &webhookPage{
		WebhookDetail: d,
		Offers:        h.offers(target{webhook: &d.Webhook}, OnWebhooks),
	}
	its := inbox.Pause{Platform: d.Platform, Tenant: d.Tenant}
	for _, o := range h.offers(target{on: its}, OnDeliveries, OnTenant) {
		body.ToTenant += onlyIf(body.ToTenant != "", ", ") + o.Act
	}
	indented, left := text.Payload(d.raw)
	body.Indented, body.NotShown = indented, int64(left)
	body.Before, body.After = h.neighbours(r.Context(), &d.Webhook)
	return &page.Page{Name: "webhook", Title: "Webhook " + d.ID, Section: "webhooks", Live: true, Body: body}, nil
}

// neighbours returns the ids of the tenant's webhooks before and after this one in the inbox, empty if there
// is none.
func (h *Handler) neighbours(ctx context.Context, w *Webhook) (before, after string) {
	if w.Tenant == "" || !w.InInbox() {
		return "", ""
	}
	n, _ := strconv.ParseInt(w.ID, 10, 64)
	first := func(f inbox.Filter) (id string) {
		f.Tenant, f.Platform, f.Limit = w.Tenant, &w.Platform, 1
		found, _ := h.cfg.Inbox.List(ctx, f) // after an error the page has no link
		for _, other := range found {
			id = strconv.FormatInt(other.ID, 10)
		}
		return id
	}
	return first(inbox.Filter{Before: n}), first(inbox.Filter{After: n})
}

func fileName(id string) string { return "webhook-" + id + ".json" }

// download is GET /webhooks/{id}/payload: the body as it came.
func (h *Handler) download(w http.ResponseWriter, r *http.Request) {
	d, err := h.withoutContent(r.Context(), r.PathValue("id"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	if d.raw == nil {
		h.fail(w, r, &refusal{http.StatusNotFound, "the payload of this webhook is not kept"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", "attachment; filename="+fileName(d.ID))
	_, _ = w.Write(d.raw) // an error means that the caller has gone
}
