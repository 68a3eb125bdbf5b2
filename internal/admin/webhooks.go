package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
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

// Webhook is an element of GET /api/webhooks: a webhook in the inbox, or one of the gate's last decisions
// about a webhook that the inbox does not have.
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
	Times    int         `json:"times,omitempty"`    // how often an invalid webhook came
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

	// Not in lists of more than 500:
	//
	// Changes says it in words, compared with what the receiver took before; if it is invalid,
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
		w.Status, w.From, w.Times = e.Code, e.From, e.Times
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
	Webhooks []Webhook `json:"webhooks"` // the newest first
	besideWebhooks

	next cursor // after the last of Webhooks
}

// besideWebhooks is what a list of webhooks says beside them.
type besideWebhooks struct {
	Next   string        `json:"next,omitempty"` // the parameter before of the next page
	Paused []inbox.Pause `json:"paused,omitempty"`
	Alike  []string      `json:"alike,omitempty"` // tenants with similar names, if the tenant of the filter is unknown
}

// cursor is a place in a list: the numbers of the last webhook of the inbox, and of the last
// decision, that came before it.
type cursor struct{ inbox, decision int64 }

func (c cursor) String() string { return fmt.Sprintf("%d.%d", c.inbox, c.decision) }

// pageSize is how many webhooks a page has. Lists of up to maxPage webhooks say what each of them changed;
// that takes reading their payloads.
const (
	pageSize = 50
	maxPage  = 500
)

// webhooks lists the webhooks in the inbox and the gate's decisions together, the newest first.
func (h *Handler) webhooks(ctx context.Context, s selection) (list WebhookList, err error) {
	compared := !s.long
	f := s.filter()
	if f.Limit > 0 {
		f.Limit++ // one more shows that there is a next page
	}
	type numbered struct {
		Webhook
		id int64
	}
	var items []numbered
	if h.cfg.Inbox != nil && !s.decisionsOnly() {
		// It keeps none of the payloads: they may be large.
		err = h.cfg.Inbox.Each(ctx, f, compared, func(item *lane.Webhook) bool {
			w := newWebhook(item)
			if compared {
				h.compare(&w, previousBody(item), item.Body)
			}
			items = append(items, numbered{w, item.ID})
			return f.Limit == 0 || len(items) < f.Limit
		})
		if err != nil {
			return list, err
		}
	}
	var decided []*decision
	if !s.inboxOnly && (s.Outcome == "" || s.decisionsOnly()) {
		f.Before = s.before.decision
		decided = h.cfg.Decisions.list(f)
	}
	list = WebhookList{Webhooks: []Webhook{}, next: s.before}
	for (s.limit == 0 || len(list.Webhooks) < s.limit) && len(items)+len(decided) > 0 {
		var w Webhook
		if len(decided) == 0 || len(items) > 0 && !items[0].Received.Before(decided[0].Received) {
			w, list.next.inbox, items = items[0].Webhook, items[0].id, items[1:]
		} else {
			w = decided[0].Webhook
			if compared {
				taken, _ := h.cfg.Decisions.before(decided[0])
				h.compare(&w, taken.payload(), decided[0].payload())
			}
			list.next.decision, decided = decided[0].seq, decided[1:]
		}
		list.Webhooks = append(list.Webhooks, w)
	}
	if len(items)+len(decided) > 0 {
		list.Next = list.next.String()
	}
	h.whyWaiting(list.Webhooks)
	return list, nil
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
		Tail: s.before != cursor{}, Newest: "/webhooks?" + query.Encode(), Choices: decisionOutcomes,
	}
	if p.HasInbox {
		p.Choices = inboxOutcomes
		if s.Narrow() && slices.ContainsFunc(list.Webhooks, func(w Webhook) bool { return w.State != "" }) {
			p.Offers = h.offers(target{all: &s}, OnWebhooks)
		}
	}
	if list.Next != "" {
		query.Set("before", list.Next)
		p.Older = "/webhooks?" + query.Encode()
	}
	return &page.Page{Name: "webhooks", Title: "Webhooks", Section: "webhooks", Live: true, Body: p}, nil
}

// apiWebhooks is GET /api/webhooks.
func (h *Handler) apiWebhooks(r *http.Request, s selection) (_ any, err error) {
	if s.inboxOnly && h.cfg.Inbox == nil {
		return nil, errNoInbox
	}
	known := true
	if s.tenant.Tenant != "" {
		if _, known, err = h.findTenant(r.Context(), s.tenant); err != nil {
			return nil, err
		}
	}
	var rest besideWebhooks
	if rest.Paused = h.paused(); !known {
		if rest.Alike, err = h.similarTenants(r.Context(), s.tenant.Tenant); err != nil {
			return nil, err
		}
	}
	return list{"webhooks", func(write func(any) error) (_ any, err error) {
		rest.Next, err = h.writeWebhooks(r.Context(), s, write)
		return rest, err
	}}, nil
}

// writeWebhooks writes what is selected, a page after the other, and returns the cursor behind it.
func (h *Handler) writeWebhooks(ctx context.Context, s selection, write func(any) error) (next string, err error) {
	left := s.limit
	for s.long = left == 0 || left > maxPage; ; left -= s.limit {
		if s.limit = maxPage; left > 0 {
			s.limit = min(left, maxPage)
		}
		page, err := h.webhooks(ctx, s)
		if err != nil {
			return "", err
		}
		for i := range page.Webhooks {
			if err := write(&page.Webhooks[i]); err != nil {
				return "", err
			}
		}
		if s.before = page.next; page.Next == "" || left == s.limit {
			return page.Next, nil
		}
	}
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

	Lines  []snapshot.Line `json:"-"` // what changed, line by line
	raw    []byte          // the body as it came; nil if it is not kept
	former []byte          // the body with which Changes compares it; nil if there is none
	sent   http.Header     // with headers that may hold a secret
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

// shownFaults returns the first faults of a webhook, in a copy. What the gate lists is short, but an import
// brings what its file says.
func shownFaults(faults []content.Fault, most int) []content.Fault {
	shown := slices.Clone(content.First(faults, most))
	for i := range shown {
		shown[i].Path, shown[i].Message = text.Clip(shown[i].Path, maxText), text.Clip(shown[i].Message, maxText)
	}
	return shown
}

// decision returns one of the gate's last decisions.
func (h *Handler) decision(seq int64) (*WebhookDetail, error) {
	e := h.cfg.Decisions.get(seq)
	if e == nil {
		return nil, &refusal{http.StatusNotFound,
			"usher no longer remembers this decision: it remembers the last 1,000"}
	}
	d := e.WebhookDetail
	taken, last := h.cfg.Decisions.before(e)
	d.raw, d.former = e.payload(), taken.payload()
	if d.raw != nil && d.former != nil {
		d.Previous = taken.ID
	}
	if e.snapshot && last != taken {
		d.Untaken = last.ID
	}
	return &d, nil
}

// addContent adds the payload, what it changed, and the header as the receiver gets it.
func (h *Handler) addContent(d *WebhookDetail) {
	h.compare(&d.Webhook, d.former, d.raw)
	if d.raw == nil {
		return
	}
	d.Payload, d.LeftOut = text.JSONPayload(d.raw)
	if d.former != nil {
		d.Lines, _ = snapshot.Lines(d.former, d.raw)
	}
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
	Indented string       // the payload
	NotShown int64        // how many bytes of the payload are not in Indented
	Faulty   []faultyLine // the payload with its faults; nil if it has none, or is not JSON
	Before   string       // id of the tenant's webhook before this one; empty if there is none
	After    string       // and of the one after it
	HasInbox bool         // usher has an inbox, whether or not this webhook is in it
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
		HasInbox:      h.cfg.Inbox != nil,
		Offers:        h.offers(target{webhook: &d.Webhook}, OnWebhooks),
	}
	its := inbox.Pause{Platform: d.Platform, Tenant: d.Tenant}
	for _, o := range h.offers(target{on: its}, OnDeliveries, OnTenant) {
		body.ToTenant += onlyIf(body.ToTenant != "", ", ") + o.Act
	}
	indented, left := text.Payload(d.raw)
	body.Indented, body.NotShown = indented, int64(left)
	if len(d.Faults) > 0 && json.Valid(d.raw) && strings.HasPrefix(body.Indented, "{") {
		body.Faulty = faultyLines(body.Indented, d.Faults)
	}
	body.Before, body.After = h.neighbours(r.Context(), &d.Webhook)
	return &page.Page{Name: "webhook", Title: "Webhook " + d.ID, Section: "webhooks", Live: true, Body: body}, nil
}

// neighbours returns the ids of the tenant's webhooks before and after this one in the inbox, empty if there
// is none. A decision of the gate has no neighbours but decisions.
func (h *Handler) neighbours(ctx context.Context, w *Webhook) (before, after string) {
	if w.Tenant == "" {
		return "", ""
	}
	if !w.InInbox() {
		return h.cfg.Decisions.neighbours(w)
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

// maxCurlPayload is how long a payload may be that becomes part of a command line.
const maxCurlPayload = 64 << 10

// Curl returns a command that sends the webhook as usher does, without secrets, timestamp and
// signature: to a receiver on a developer's machine. The address of the real receiver is left out,
// because it may hold a secret.
func (d *WebhookDetail) Curl() string {
	var line strings.Builder
	line.WriteString(`curl -X POST "$RECEIVER_URL"`)
	header := d.Header.Clone()
	for _, name := range []string{"Content-Length", "Webhook-Timestamp", "Webhook-Signature"} {
		header.Del(name)
	}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			if field := name + ": " + value; typable(field) {
				fmt.Fprintf(&line, " -H %s", text.Quote(field))
			}
		}
	}
	// curl reads what begins with @ from a file; JSON does not.
	if len(d.raw) <= maxCurlPayload && json.Valid(d.raw) && typable(strings.ReplaceAll(string(d.raw), "\n", "")) {
		fmt.Fprintf(&line, " --data-binary %s", text.Quote(string(d.raw)))
	} else {
		fmt.Fprintf(&line, " --data-binary @%s", fileName(d.ID))
	}
	return line.String()
}

// typable reports whether somebody can type or paste a text: a terminal acts on some characters
// before a shell reads them.
func typable(s string) bool { return text.Visible(s) == s }

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

// faultyLine is a line of an indented payload, and what is wrong with it.
type faultyLine struct {
	Text   string
	Faults []string
}

// faultyLines puts each fault next to the line that it is about. A missing member is reported at the line
// where its object begins, and so is a value that is not shown.
func faultyLines(indented string, faults []content.Fault) (all []faultyLine) {
	for line := range strings.SplitSeq(indented, "\n") {
		all = append(all, faultyLine{Text: line})
	}
	root := new(place)
	for _, f := range faults {
		root.add(f.Path)
	}
	w := lineWalk{Decoder: json.NewDecoder(strings.NewReader(indented)), text: indented}
	w.UseNumber() // a float64 would refuse 1e999
	w.value(root)
	for _, f := range faults {
		at, missing := root.find(f.Path)
		words := f.Message
		if missing != "" {
			words = missing + " " + words
		}
		for _, i := range at.lines {
			all[i].Faults = append(all[i].Faults, words)
		}
	}
	return all
}

// place is a value that a fault is about, or that is on the way there. Only these are looked for in a
// payload: the paths of all its values may take much more memory than the payload.
type place struct {
	lines []int             // where it begins: several if a name occurs twice; empty if it is not in the payload
	below map[string]*place // by the names of members, and the indexes of items
}

// maxPlaces is how many lines are marked of a name that occurs again and again.
const maxPlaces = 10

var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// add makes the places on the way to a JSON pointer.
func (p *place) add(pointer string) {
	for name := range pointerNames(pointer) {
		if p.below == nil {
			p.below = make(map[string]*place)
		}
		if p.below[name] == nil {
			p.below[name] = new(place)
		}
		p = p.below[name]
	}
}

// find returns the last place on the way to a JSON pointer that the payload has, and the rest of the pointer.
func (p *place) find(pointer string) (_ *place, rest string) {
	rest = strings.TrimPrefix(pointer, "/")
	for name, after := range pointerNames(pointer) {
		next := p.below[name]
		if next == nil || len(next.lines) == 0 {
			return p, rest
		}
		p, rest = next, after
	}
	return p, rest
}

// pointerNames goes through the names in a JSON pointer, each with what follows it.
func pointerNames(pointer string) iter.Seq2[string, string] {
	return func(yield func(name, after string) bool) {
		rest, more := strings.CutPrefix(pointer, "/")
		for more {
			var name string
			name, rest, more = strings.Cut(rest, "/")
			if !yield(unescapePointer.Replace(name), rest) {
				return
			}
		}
	}
}

// lineWalk finds the lines on which values of a JSON text begin. The end of the text may be missing.
type lineWalk struct {
	*json.Decoder
	text     string
	at, line int  // lines have been counted up to here
	ended    bool // the rest of the text is missing
}

// value notes the line of the next value. at is its place, or nil.
func (w *lineWalk) value(at *place) {
	token, err := w.Token()
	if w.ended = err != nil; w.ended {
		return
	}
	offset := int(w.InputOffset())
	w.line += strings.Count(w.text[w.at:offset], "\n")
	w.at = offset
	if at != nil && len(at.lines) < maxPlaces {
		at.lines = append(at.lines, w.line)
	}
	var below map[string]*place
	if at != nil {
		below = at.below
	}
	switch token {
	case json.Delim('{'):
		for !w.ended && w.More() {
			token, _ := w.Token() // after an error the value fails, too
			name, _ := token.(string)
			w.value(below[name])
		}
	case json.Delim('['):
		for i := 0; !w.ended && w.More(); i++ {
			w.value(below[strconv.Itoa(i)])
		}
	default:
		return
	}
	if !w.ended { // each error would name all that is around its place
		_, _ = w.Token() // the closing brace or bracket
	}
}
