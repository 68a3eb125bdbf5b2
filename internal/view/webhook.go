package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
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

	HeldUp *HeldUp `json:"-"` // the webhook that holds up the tenant's queue, or nil
	Newer  string  `json:"-"` // a newer one of its tenant, which it would overwrite; not in lists

	// Changes says what it changed in words, compared with what the receiver took before; if it is invalid,
	// what it would have changed.
	Changes []string `json:"changes,omitempty"`
	First   bool     `json:"first,omitempty"` // usher knows of nothing that the receiver took before
}

// maxText limits what is shown of a reason that a sender can make long.
const maxText = 512

// NewWebhook returns an entry of the inbox, without what it changed and why it waits.
func NewWebhook(e *lane.Webhook) Webhook {
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
	if w.Waits() {
		w.Next = e.Next
	}
	return w
}

// comparing holds one value for each webhook that is being compared with the one before it. Large payloads take many
// times their size meanwhile, so only a few are at once, however many people look.
var comparing = make(chan struct{}, 2)

// SetChanges sets what a webhook of the inbox changed. Its content must have been read; if that is not kept, or is
// damaged, nothing is known.
func (w *Webhook) SetChanges(e *lane.Webhook) {
	comparing <- struct{}{}
	defer func() { <-comparing }()
	var previous []byte
	if e.Previous != nil {
		previous = e.Previous.Body
	}
	switch {
	case e.Body == nil, w.State == state.Replaced: // an accepted one was taken in as a new webhook, which has the changes
	case w.Decision == "rejected":
		w.Changes = snapshot.Would(previous, e.Body)
	default:
		w.First, w.Changes = previous == nil, snapshot.Between(previous, e.Body)
	}
}

// Outcome returns the state in the inbox, or the decision of the gate.
func (w *Webhook) Outcome() string { return cmp.Or(string(w.State), w.Decision) }

// InInbox reports whether the webhook is in the inbox; else it is one of the gate's decisions.
func (w *Webhook) InInbox() bool { return w.State != "" }

// Waits reports whether it waits for delivery.
func (w *Webhook) Waits() bool { return w.State == state.Waiting }

// Webhooks are the columns of a list of webhooks.
var Webhooks = []Column[Webhook]{
	{Head: "ID", Name: "id", Cell: func(w *Webhook) Cell { return Cell{Words: w.ID, Link: w.URL()} }},
	{Head: "State", Name: "state", Cell: func(w *Webhook) Cell { return Cell{Words: w.Outcome(), Tone: Tone(w.Outcome())} }},
	{Head: "Tenant", Name: "tenant", Cell: (*Webhook).Who},
	{Head: "What changed", Name: "what", Cut: true, Cell: func(w *Webhook) Cell { return Cell{Words: w.Change()} }},
	{Head: "Tries", Name: "num tries", Cell: func(w *Webhook) Cell { return Cell{Words: strconv.Itoa(w.Tries)} }},
	{Head: "Age", Name: "num age", Cell: func(w *Webhook) Cell { return Cell{At: w.Received} }},
	{Head: "Last answer", Name: "answer", Cell: (*Webhook).LastAnswer},
}

// LastAnswer says what the receiver answered last, or why it has the webhook not, and what the webhook waits for.
func (w *Webhook) LastAnswer() Cell {
	said := Cell{Words: cmp.Or(w.Answer, w.Why), Notes: w.WaitsFor()}
	if w.Status >= 400 {
		said.Notes = append(said.Notes, Note{Words: fmt.Sprint("the sender got ", w.Status)})
	}
	return said
}

// URL is the address of its page.
func (w *Webhook) URL() string { return "/webhooks/" + w.ID }

// ElementID is that of its row on a page.
func (w *Webhook) ElementID() string { return "w-" + w.ID }

// Who says whose it is: its tenant or, if it belongs to none, its type in brackets.
func (w *Webhook) Who() Cell {
	switch {
	case w.Tenant != "" && w.InInbox():
		return Cell{Words: TenantName(w.Platform, w.Tenant), Link: TenantURL(w.Platform, w.Tenant)}
	case w.Tenant != "":
		return Cell{Words: TenantName(w.Platform, w.Tenant)}
	case w.Type != "" && w.Decision != "rejected":
		return Cell{Words: "(" + Excerpt(w.Type) + ")"}
	}
	return Cell{} // it was damaged in the inbox, or is invalid for a reason that comes before its tenant
}

// maxChanges is how many changes a list says of a webhook.
const maxChanges = 5

// Change says in a list what it changed.
func (w *Webhook) Change() string {
	said := ""
	for _, c := range w.Changes[:min(maxChanges, len(w.Changes))] {
		if said != "" {
			said += ", "
		}
		said += text.Shorten(c, 120)
	}
	if n := len(w.Changes) - maxChanges; n > 0 {
		said += fmt.Sprintf(", and %d more", n)
	}
	if w.Source != "" {
		return w.Source + ": " + cmp.Or(said, Nothing)
	}
	return said
}

// WaitsFor says what a webhook waits for, and how many wait behind it.
func (w *Webhook) WaitsFor() (all []Note) {
	add := func(words, link string) { all = append(all, Note{Words: words, Link: link}) }
	if w.Paused {
		add(inbox.Pause{Until: w.Next}.With("paused"), "")
	}
	switch {
	case w.NoReceiver:
		add("no receiver takes its platform", "")
	case w.HeldBy != "":
		add("behind "+w.HeldBy, "/webhooks/"+w.HeldBy)
	case w.Waits() && !w.Paused && (w.Down || !w.Next.IsZero()):
		add(NextTry(w.Next, false, w.Down), "")
	}
	if w.Behind > 0 {
		add(Plural(w.Behind, "waits", "wait")+" behind it", "")
	}
	return all
}

// HeldUp is a tenant whose webhooks wait behind one whose delivery failed.
type HeldUp struct {
	Platform string `json:"platform"`
	Tenant   string `json:"tenant"`
	Receiver string `json:"receiver"`
	Webhook  string `json:"webhook"` // id of the webhook that failed
	Tries    int    `json:"tries"`
	Answer   string `json:"answer"` // the receiver's last answer, in words
	// Next is when usher tries it again; while it is paused, the end of the pause, if it has one.
	Next   time.Time `json:"next,omitzero"`
	Behind int       `json:"behind"`         // how many webhooks wait behind it
	Since  time.Time `json:"since,omitzero"` // when it came
	Down   bool      `json:"down"`           // the receiver fails for everybody
	Paused bool      `json:"paused"`         // deliveries of the tenant are paused

	Status int `json:"-"` // of the last answer
}

// NewHeldUp describes a tenant that is held up. known are the receivers of the gate, paused the pauses in force.
func NewHeldUp(held *inbox.HeldUp, known *receiver.Set, paused []inbox.Pause) HeldUp {
	next, pause := held.Next, PausedBy(paused, known, held.Platform, held.Tenant, held.Receiver)
	if pause != nil {
		next = pause.Until
	}
	return HeldUp{
		Platform: held.Platform,
		Tenant:   held.Tenant,
		Receiver: held.Receiver,
		Webhook:  strconv.FormatInt(held.ID, 10),
		Tries:    held.Tries,
		Answer:   held.Answer(),
		Next:     next,
		Behind:   held.Behind,
		Since:    held.Received,
		Down:     held.Down,
		Paused:   pause != nil,
		Status:   held.Tried[len(held.Tried)-1].Status,
	}
}

// Name returns the tenant as people write it.
func (h *HeldUp) Name() string { return TenantName(h.Platform, h.Tenant) }

// Words say how the webhook fares that holds the others up.
func (h *HeldUp) Words() string {
	words := fmt.Sprintf("%s, %s, %s", Excerpt(h.Answer), Plural(h.Tries, "try", "tries"), NextTry(h.Next, h.Paused, h.Down))
	if h.Behind > 0 {
		words += "; " + Plural(h.Behind, "waits", "wait") + " behind it"
	}
	return words
}

// NextTry says when usher tries a webhook next. While the receiver is down there is no time for that: usher
// probes it with one webhook after the other, whichever comes next.
func NextTry(at time.Time, paused, down bool) string {
	switch next := max(0, time.Until(at)).Round(time.Second); {
	case paused:
		return inbox.Pause{Until: at}.With("paused")
	case down:
		return "next try when the receiver is back"
	case next == 0:
		return "next try now"
	default:
		return "next try in " + strings.Split(Span(next), " ")[0]
	}
}

// PausedBy returns the pause that holds back a tenant's webhooks, or nil. known are the receivers of the
// gate; if the gate is off, nil, and only other replicas know them. tried is the name of the receiver that
// was tried last. It counts only if known has none for the platform.
func PausedBy(paused []inbox.Pause, known *receiver.Set, platform, tenant, tried string) *inbox.Pause {
	if r := known.For(platform); r != nil {
		tried = r.Name
	}
	if i := slices.IndexFunc(paused, func(p inbox.Pause) bool { return p.Covers(platform, tenant, tried) }); i >= 0 {
		return &paused[i]
	}
	return nil
}

// Queues say why webhooks wait.
type Queues struct {
	Paused    []inbox.Pause // in force
	Receivers *receiver.Set
	Delivers  bool // this replica has a gate; one without does not know which receivers there are

	held map[webhookgate.LaneName]HeldUp
}

// Hold adds the queues that are held up.
func (q *Queues) Hold(all []inbox.HeldUp) {
	q.held = make(map[webhookgate.LaneName]HeldUp, len(all))
	for i := range all {
		h := &all[i]
		q.held[laneOf(h.Platform, h.Tenant, h.Kind)] = NewHeldUp(h, q.Receivers, q.Paused)
	}
}

// laneOf returns the lane of a webhook. Only a webhook without a tenant has a lane by its type.
func laneOf(platform, tenant, kind string) webhookgate.LaneName {
	if tenant != "" {
		kind = ""
	}
	return webhookgate.LaneName{Platform: platform, Tenant: tenant, Type: kind}
}

// Lane is the queue in which it is delivered.
func (w *Webhook) Lane() webhookgate.LaneName { return laneOf(w.Platform, w.Tenant, w.Type) }

// Explain adds to a webhook that waits what it waits for: another webhook of its tenant, a receiver, or the end of a
// pause.
func (q *Queues) Explain(w *Webhook) {
	if !w.Waits() {
		return
	}
	if p := PausedBy(q.Paused, q.Receivers, w.Platform, w.Tenant, w.Receiver); p != nil {
		w.Paused, w.Next = true, p.Until
	}
	if w.NoReceiver = q.Delivers && q.Receivers.For(w.Platform) == nil; w.NoReceiver {
		return
	}
	held, ok := q.held[w.Lane()]
	if !ok {
		return
	}
	w.HeldUp = &held
	if held.Webhook == w.ID {
		w.Behind, w.Down = held.Behind, held.Down
	} else {
		w.HeldBy = held.Webhook
	}
}
