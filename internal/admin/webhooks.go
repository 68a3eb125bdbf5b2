package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/inbox/store"
	"usher/internal/snapshot"
	"usher/webhookgate"
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

	HeldUp *status.HeldUp `json:"-"` // what holds up its queue; nil: nothing

	// Not in lists of more than 500:
	Changes []string `json:"changes,omitempty"` // against what the receiver took before it, in words; what one that was refused would have
	First   bool     `json:"first,omitempty"`   // nothing that it took before is known
}

// Outcome is where it stands, in a word.
func (w *Webhook) Outcome() string { return cmp.Or(string(w.State), w.Decision) }

func (w *Webhook) waits() bool { return w.State == store.Waiting }

// NextTry says when one that waits is tried next; empty: nobody knows.
func (w *Webhook) NextTry() string {
	if w.waits() && (w.Paused || w.HeldBy == "" && !w.Next.IsZero()) {
		return status.NextTry(w.Next, w.Paused, w.Down)
	}
	return ""
}

// lane is the queue that it waits in.
func (w *Webhook) lane() webhookgate.Lane { return laneOf(w.Platform, w.Tenant, w.Type) }

func laneOf(platform, tenant, kind string) webhookgate.Lane {
	if tenant != "" {
		kind = ""
	}
	return webhookgate.Lane{Platform: platform, Tenant: tenant, Type: kind}
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
		w.Why = content.Summary(e.Faults)
	}
	if w.waits() {
		w.Next = e.Next
	}
	return w
}

// compare says what it changed. A record that is damaged has no body, and nothing is known of that.
func (w *Webhook) compare(previous, body []byte) {
	switch {
	case body == nil, w.State == store.Accepted: // what was taken in has a line of its own
	case w.Decision == "rejected":
		w.Changes = snapshot.Would(previous, body)
	default:
		w.First, w.Changes = previous == nil, snapshot.Between(previous, body)
	}
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
func (h *Handler) webhooks(s Selection) (list WebhookList, err error) {
	compared := s.limit > 0 && s.limit <= maxPage
	f := s.filter()
	if f.Limit > 0 {
		f.Limit++ // is there more?
	}
	var items []*store.Item
	if h.cfg.Inbox != nil && !s.decided() {
		f.Before = s.before.inbox
		if items, err = h.items(f, compared); err != nil {
			return list, err
		}
	}
	var decided []*decision
	if h.cfg.Decisions != nil && !s.kept && (s.Outcome == "" || s.decided()) {
		f.Before = s.before.decision
		decided = h.cfg.Decisions.list(f)
	}
	list = WebhookList{Webhooks: []Webhook{}, next: s.before}
	for (s.limit == 0 || len(list.Webhooks) < s.limit) && len(items)+len(decided) > 0 {
		var w Webhook
		if len(decided) == 0 || len(items) > 0 && !items[0].Received.Before(decided[0].Received) {
			w = bare(&items[0].Entry)
			w.compare(previousBody(items[0]), items[0].Body)
			list.next.inbox, items = items[0].ID, items[1:]
		} else {
			w = decided[0].Webhook
			if compared {
				body, previous := h.cfg.Decisions.payloadsOf(decided[0])
				w.compare(previous, body)
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

// previousBody is what a webhook is compared with; nil: nothing is known.
func previousBody(item *store.Item) []byte {
	if item.Previous == nil {
		return nil
	}
	return item.Previous.Body
}

// items are those in the inbox, with their content if whole is true.
func (h *Handler) items(f store.Filter, whole bool) (items []*store.Item, err error) {
	if whole {
		return h.cfg.Inbox.Items(f)
	}
	entries, err := h.cfg.Inbox.List(f)
	for _, e := range entries {
		items = append(items, &store.Item{Entry: e})
	}
	return items, err
}

// whyWaiting says of those that wait what they wait for: their next try, another webhook of their tenant, or somebody who has
// paused them.
func (h *Handler) whyWaiting(list []Webhook) {
	if !slices.ContainsFunc(list, func(w Webhook) bool { return w.waits() }) {
		return
	}
	paused, known, held := h.paused(), h.receivers(), h.heldUp()
	// A replica without a gate, which has no receivers at all, does not know whether any takes a platform.
	homeless := h.cfg.Gate != nil && h.cfg.Inbox.Stats().Receivers[""].Pending > 0
	for i := range list {
		w := &list[i]
		if !w.waits() {
			continue
		}
		w.Paused = status.PausedBy(paused, known, w.Platform, w.Tenant, w.Receiver) != nil
		w.NoReceiver = homeless && known.For(w.Platform) == nil
		switch w.HeldUp = held[w.lane()]; {
		case w.HeldUp == nil:
		case w.HeldUp.Webhook == w.ID:
			w.Behind, w.Down = w.HeldUp.Behind, w.HeldUp.Down
		default:
			w.HeldBy = w.HeldUp.Webhook
		}
	}
}

// heldUp returns what holds up each queue that is.
func (h *Handler) heldUp() map[webhookgate.Lane]*status.HeldUp {
	all := make(map[webhookgate.Lane]*status.HeldUp)
	if h.cfg.Inbox == nil {
		return all
	}
	known, paused := h.receivers(), h.paused()
	for _, held := range h.cfg.Inbox.HeldUp() {
		all[laneOf(held.Platform, held.Tenant, held.Kind)] = new(status.NewHeldUp(&held, known, paused))
	}
	return all
}

// webhookPage is the list and what it was selected by.
type webhookPage struct {
	WebhookList
	Selection
	Off      bool // there is neither a gate nor an inbox
	HasInbox bool
	Tail     bool   // not the newest are shown
	Older    string // address of those that follow; empty: there are none
	Newest   string // address of the beginning
	Choices  []string

	// Addresses of the pages that send all of these again, or discard them; empty: they can't be.
	Redeliver, Discard string
}

func (h *Handler) webhookPage(_ *http.Request, s Selection) (any, error) {
	list, err := h.webhooks(s)
	if err != nil {
		return nil, err
	}
	query := s.Query()
	p := &webhookPage{
		WebhookList: list, Selection: s, Off: !h.hasWebhooks(), HasInbox: h.cfg.Inbox != nil,
		Tail: s.before != cursor{}, Newest: "/webhooks?" + query.Encode(), Choices: passOutcomes,
	}
	if p.HasInbox {
		p.Choices = inboxOutcomes
		if s.Narrow() && slices.ContainsFunc(list.Webhooks, func(w Webhook) bool { return w.State != "" }) {
			p.Redeliver, p.Discard = "/redeliver?"+query.Encode(), "/discard?"+query.Encode()
		}
	}
	if list.Next != "" {
		query.Set("before", list.Next)
		p.Older = "/webhooks?" + query.Encode()
	}
	return &page.Shell{Name: "webhooks", Title: "Webhooks", At: "webhooks", Live: true, Body: p}, nil
}

// apiWebhooks is GET /api/webhooks.
func (h *Handler) apiWebhooks(_ *http.Request, s Selection) (_ any, err error) {
	if s.kept && h.cfg.Inbox == nil {
		return nil, errNoInbox
	}
	var known []string
	if s.tenant.Tenant != "" {
		if known, err = h.platformsOf(s.tenant); err != nil {
			return nil, err
		}
	}
	list, err := h.webhooks(s)
	list.Paused = h.paused()
	if err == nil && s.tenant.Tenant != "" && len(known) == 0 {
		list.Alike, err = h.alike(s.tenant.Tenant)
	}
	return list, err
}

// WebhookDetail is the answer of GET /api/webhooks/{id}.
type WebhookDetail struct {
	Webhook
	Previous string          `json:"previous,omitempty"` // id of the snapshot that changes compares with
	Untaken  string          `json:"untaken,omitempty"`  // id of the tenant's snapshot right before it, if the receiver has not taken that
	Counted  int             `json:"counted,omitempty"`  // of its tries: those that did not find the receiver down
	Attempts []store.Attempt `json:"attempts,omitempty"` // the last 20
	Faults   []content.Fault `json:"faults,omitempty"`
	Original string          `json:"duplicate_of,omitempty"` // a webhook-id
	Header   http.Header     `json:"header,omitempty"`       // as the receiver gets it, less what could be a secret
	Payload  json.RawMessage `json:"payload,omitempty"`      // the body; one that is no JSON as a string

	Lines []snapshot.Line `json:"-"` // what changed, line by line
	body  []byte          // the payload as it came
}

// webhook returns one, by its id as it stands in an address.
func (h *Handler) webhook(id string) (*WebhookDetail, error) {
	number, decided := strings.CutPrefix(id, "d")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || decided && h.cfg.Decisions == nil || !decided && h.cfg.Inbox == nil {
		return nil, store.ErrNotFound
	}
	if decided {
		return h.decision(n)
	}
	item, err := h.cfg.Inbox.Show(n)
	if err != nil {
		return nil, err
	}
	list := []Webhook{bare(&item.Entry)}
	h.whyWaiting(list)
	d := &WebhookDetail{Webhook: list[0], Counted: item.Counted, Attempts: item.Attempts, Faults: item.Faults}
	var taken int64
	if item.Previous != nil {
		taken = item.Previous.ID
		d.Previous = strconv.FormatInt(taken, 10)
	}
	if item.Before != 0 && item.Before != taken {
		d.Untaken = strconv.FormatInt(item.Before, 10)
	}
	h.open(d, item.Header, item.Body, previousBody(item))
	return d, nil
}

// decision returns what the gate decided of a webhook.
func (h *Handler) decision(seq int64) (*WebhookDetail, error) {
	e := h.cfg.Decisions.get(seq)
	if e == nil {
		return nil, &refusal{http.StatusNotFound, "this decision is not remembered any more: the last 1,000 are"}
	}
	d := e.WebhookDetail
	body, previous := h.cfg.Decisions.payloadsOf(e)
	if body != nil && previous != nil {
		d.Previous = decisionID(e.earlier.taken)
	}
	if e.earlier.any != 0 && e.earlier.any != e.earlier.taken {
		d.Untaken = decisionID(e.earlier.any)
	}
	h.open(&d, e.Header, body, previous)
	return &d, nil
}

// open adds what the content says: what it changed since the previous one, and the header as its receiver gets it, but for what
// may be a secret.
func (h *Handler) open(d *WebhookDetail, header http.Header, body, previous []byte) {
	d.body, d.Header = body, nil
	d.compare(previous, body)
	if body == nil {
		return
	}
	d.Payload = payload(body)
	if previous != nil {
		d.Lines, _ = snapshot.Lines(previous, body)
	}
	d.Header = shown(header)
	d.Header.Set("Webhook-Id", d.Webhook.Webhook)
	d.Header.Set("Webhook-Timestamp", "[each try has its own]")
	if n := len(d.Attempts); n > 0 {
		d.Header.Set("Webhook-Timestamp", strconv.FormatInt(d.Attempts[n-1].At.Unix(), 10))
	}
	if r := h.receivers().For(d.Platform); r != nil && r.SignSecret != nil {
		d.Header.Set("Webhook-Signature", "[redacted]")
	}
}

// payload is a body as a JSON value.
func payload(body []byte) json.RawMessage {
	if json.Valid(body) && utf8.Valid(body) {
		return body
	}
	text, _ := json.Marshal(strings.ToValidUTF8(string(body), "\uFFFD")) // a string can always be marshalled
	return text
}

// private are parts of the names of headers that may hold a secret: those that the
// gate knows never came so far, but a sender may have others for the receiver.
var private = []string{"auth", "cookie", "token", "secret", "pass", "signature", "key", "jwt", "session", "credential"}

// shown returns the header without what may be a secret.
func shown(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		normal := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if normal == "idempotency-key" || !slices.ContainsFunc(private, func(part string) bool { return strings.Contains(normal, part) }) {
			out[name] = values
		}
	}
	return out
}

// webhookView is one webhook, and what can be done with it.
type webhookView struct {
	*WebhookDetail
	Indent   string       // the payload, written out
	Beside   []faultyLine // the same with its faults; nil: it has none, or is no JSON
	Before   string       // id of the tenant's webhook before it; empty: there is none
	After    string       // and after it
	HasInbox bool         // there is one, whether or not it is in it
}

// InInbox says whether it is in the inbox.
func (d *WebhookDetail) InInbox() bool { return d.State != "" }

// Open says whether it can be discarded: it waits, is parked, or was refused.
func (d *WebhookDetail) Open() bool { return d.InInbox() && !d.State.Finished() }

func (h *Handler) oneWebhook(r *http.Request) (any, error) {
	d, err := h.webhook(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	v := &webhookView{WebhookDetail: d, HasInbox: h.cfg.Inbox != nil}
	if d.Payload != nil {
		v.Indent = indent(d.Payload)
		if len(d.Faults) > 0 && d.Payload[0] == '{' {
			v.Beside = beside(v.Indent, d.Faults)
		}
	}
	v.Before, v.After = h.neighbours(&d.Webhook)
	shell := &page.Shell{Name: "webhook", Title: "Webhook " + d.ID, At: "webhooks", Live: true, Body: v}
	if r.URL.Query().Get("did") == "redeliver" {
		switch {
		case !d.waits():
			shell.Notice = "It was sent again." // what came of it stands below
		case d.Paused:
			shell.Notice = "It is sent again once its deliveries are resumed."
		case d.Down:
			shell.Notice = "It is sent again when the receiver is back."
		}
	}
	return shell, nil
}

// neighbours returns the ids of the tenant's webhooks that came before and after one; empty: there is none, or it is
// too far back. With an inbox they are those in it, else those that the gate remembers.
func (h *Handler) neighbours(w *Webhook) (before, after string) {
	if w.Tenant == "" {
		return "", ""
	}
	f := store.Filter{Tenant: w.Tenant, Platform: &w.Platform, Limit: maxPage}
	var ids []string // the newest first
	if w.State != "" {
		entries, _ := h.cfg.Inbox.List(f) // the page can do without
		for _, e := range entries {
			ids = append(ids, strconv.FormatInt(e.ID, 10))
		}
	} else {
		for _, e := range h.cfg.Decisions.list(f) {
			ids = append(ids, e.ID)
		}
	}
	at := slices.Index(ids, w.ID)
	if at > 0 {
		after = ids[at-1]
	}
	if at >= 0 && at+1 < len(ids) {
		before = ids[at+1]
	}
	return before, after
}

// indent writes JSON for people; what was no JSON is a string by now.
func indent(payload json.RawMessage) string {
	var text string
	if json.Unmarshal(payload, &text) == nil {
		return text
	}
	var out bytes.Buffer
	_ = json.Indent(&out, payload, "", "  ") // it is JSON
	return out.String()
}

// curlMost is how long a payload may be within a line for a shell.
const curlMost = 64 << 10

// Curl is a line for a shell that sends a webhook as usher does, but for what may be a secret, the time and the signature: to a copy
// of the receiver on somebody's desk. Where the receiver is can't be shown here: its address may hold a secret.
func (d *WebhookDetail) Curl() string {
	var line strings.Builder
	line.WriteString(`curl -X POST "$RECEIVER_URL"`)
	header := d.Header.Clone()
	for _, name := range []string{"Content-Length", "Webhook-Timestamp", "Webhook-Signature"} {
		header.Del(name)
	}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			fmt.Fprintf(&line, " -H %s", quote(name+": "+value))
		}
	}
	if len(d.Payload) > curlMost {
		fmt.Fprintf(&line, " --data-binary @%s", fileName(d.ID))
	} else {
		fmt.Fprintf(&line, " --data-binary %s", quote(string(d.Payload)))
	}
	return line.String()
}

// quote writes a word so that no shell finds anything in it. Codes are foreign.
func quote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:") == "" && word[0] != '-' {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func fileName(id string) string { return "webhook-" + id + ".json" }

// download answers with a webhook's payload, as it came, for a file.
func (h *Handler) download(w http.ResponseWriter, r *http.Request) {
	d, err := h.webhook(r.PathValue("id"))
	if err != nil {
		h.explain(w, r, err)
		return
	}
	if d.body == nil {
		h.explain(w, r, &refusal{http.StatusNotFound, "the payload of this webhook is not kept"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", "attachment; filename="+fileName(d.ID))
	_, _ = w.Write(d.body) // the reader may be gone; nothing to do about it
}

// faultyLine is a line of a payload as it is shown, and what is wrong there.
type faultyLine struct {
	Text   string
	Faults []string
}

// beside puts each fault beside the line of an indented payload that it speaks of. A member that is missing is said where the object
// begins that should have it.
func beside(indented string, faults []content.Fault) (all []faultyLine) {
	for line := range strings.SplitSeq(indented, "\n") {
		all = append(all, faultyLine{Text: line})
	}
	w := lineWalk{Decoder: json.NewDecoder(strings.NewReader(indented)), text: indented, lines: make(map[string][]int)}
	w.UseNumber() // a float may be too small for one
	w.value("")   // the payload was read before: it is JSON
	for _, f := range faults {
		path, words := f.Path, f.Message
		for len(w.lines[path]) == 0 && path != "" {
			path = path[:max(0, strings.LastIndexByte(path, '/'))]
		}
		if missing := f.Path[len(path):]; missing != "" {
			words = strings.TrimPrefix(missing, "/") + " " + words
		}
		for _, i := range w.lines[path] {
			all[i].Faults = append(all[i].Faults, words)
		}
	}
	return all
}

// lineWalk finds the line on which each value of a JSON text begins.
type lineWalk struct {
	*json.Decoder
	text     string
	at, line int              // how far it has counted lines
	lines    map[string][]int // by JSON pointer; a name may be there twice
}

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

func (w *lineWalk) value(path string) {
	token, _ := w.Token()
	offset := int(w.InputOffset())
	w.line += strings.Count(w.text[w.at:offset], "\n")
	w.at = offset
	w.lines[path] = append(w.lines[path], w.line)
	switch token {
	case json.Delim('{'):
		for w.More() {
			name, _ := w.Token()
			w.value(path + "/" + escapePointer.Replace(name.(string)))
		}
		_, _ = w.Token() // the end of it
	case json.Delim('['):
		for i := 0; w.More(); i++ {
			w.value(path + "/" + strconv.Itoa(i))
		}
		_, _ = w.Token()
	}
}
