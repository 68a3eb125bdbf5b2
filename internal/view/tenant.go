package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
)

// Tenants are the columns of a list of tenants.
var Tenants = []Column[inbox.Tenant]{
	{Head: "Tenant", Name: "tenant", Cell: func(t *inbox.Tenant) Cell {
		return Cell{Words: TenantName(t.Platform, t.Tenant), Link: TenantURL(t.Platform, t.Tenant)}
	}},
	{Head: "Last webhook", Name: "last", Cell: func(t *inbox.Tenant) Cell {
		if t.Latest.IsZero() {
			return Cell{}
		}
		return Cell{Words: Stamp(t.Latest)}
	}},
	{Head: "Now", Name: "now", Cell: standing},
	{Head: "Name", Name: "name", Cell: func(t *inbox.Tenant) Cell { return Cell{Words: Excerpt(t.Name)} }},
}

// standing says how a tenant stands.
func standing(t *inbox.Tenant) Cell {
	var words []string
	tone := ""
	add := func(is bool, word, as string) {
		if is {
			words, tone = append(words, word), cmp.Or(tone, as) // the worst comes first
		}
	}
	add(t.Invalid > 0, Count(t.Invalid)+" invalid", "bad")
	add(t.Parked > 0, Count(t.Parked)+" parked", "bad")
	add(t.Unknown, "features unknown", "bad")
	add(t.HeldUp, "held up", "warn")
	add(t.Paused, inbox.Pause{Until: t.Until}.With("paused"), "warn")
	add(t.Waiting > 0, Count(t.Waiting)+" waiting", "")
	if len(words) == 0 {
		words = []string{"all right"}
	}
	return Cell{Words: strings.Join(words, ", "), Tone: tone}
}

// Tenant is what a tenant may use, and the webhooks that led to it.
type Tenant struct {
	Platform  string             `json:"platform"`
	Code      string             `json:"code"`
	MayUse    *MayUse            `json:"may_use,omitempty"`   // what usher answers checks with now
	NotKnown  string             `json:"not_known,omitempty"` // why MayUse is missing
	Rights    *snapshot.Snapshot `json:"rights,omitempty"`    // what the snapshot of MayUse says
	Snapshots []Webhook          `json:"snapshots"`           // the tenant's webhooks, the newest first
	More      bool               `json:"more,omitempty"`      // there are older ones
	Receipt   *Receipt           `json:"receipt,omitempty"`   // left out if it is not known
	// Invalid is the tenant's last webhook that is invalid, if nobody has dealt with it.
	Invalid *Webhook `json:"invalid,omitempty"`
	// Unread says why the inbox can't be read now: then only MayUse is known, from memory.
	Unread string `json:"unread,omitempty"`

	Latest *Webhook `json:"-"` // the one of Receipt
}

// Name is the tenant as people write it.
func (t *Tenant) Name() string { return TenantName(t.Platform, t.Code) }

// MayUse is what a tenant may use: what usher answers checks with now.
type MayUse struct {
	Known    bool               `json:"known"` // the tenant's last snapshot has a list of features
	Features []snapshot.Feature `json:"features"`
	AsOf     time.Time          `json:"as_of"`   // when that snapshot was taken in
	Webhook  string             `json:"webhook"` // its webhook-id
	ID       int64              `json:"id"`      // its id; the inbox may not have the webhook any more

	// Stale is for how long the inbox's database could not be reached. Another replica may have taken in a
	// newer snapshot since. Zero: it can be reached.
	Stale time.Duration `json:"stale,omitzero"`
}

// Features are the columns of the list of what a tenant may use.
var Features = []Column[snapshot.Feature]{
	{Head: "Feature", Cell: func(f *snapshot.Feature) Cell { return Cell{Words: snapshot.Shown(f.Code)} }},
	{Head: "Limit", Name: "num", Cell: func(f *snapshot.Feature) Cell { return Cell{Words: f.Limit.String()} }},
	{Head: "Value", Cell: func(f *snapshot.Feature) Cell { return Cell{Words: snapshot.Shown(f.Value)} }},
	{Head: "Name", Cell: func(f *snapshot.Feature) Cell { return Cell{Words: snapshot.Shown(f.Name)} }},
}

// Subscriptions are the columns of the list of what a tenant has bought.
var Subscriptions = []Column[snapshot.Subscription]{
	{Head: "Subscription", Cell: func(s *snapshot.Subscription) Cell {
		return Cell{Words: snapshot.Shown(cmp.Or(s.Label, "subscription"))}
	}},
	{Head: "State", Cell: func(s *snapshot.Subscription) Cell { return Cell{Words: snapshot.Shown(s.State)} }},
	{Head: "Plan", Cell: func(s *snapshot.Subscription) Cell { return Cell{Words: snapshot.Shown(s.Plan.Label())} }},
	{Head: "Runs", Cell: func(s *snapshot.Subscription) Cell {
		runs := snapshot.Shown(s.Start)
		if s.End != "" {
			runs += " to " + snapshot.Shown(s.End)
		}
		if s.TrialEnd != "" {
			runs += ", trial until " + snapshot.Shown(s.TrialEnd)
		}
		return Cell{Words: runs}
	}},
}

// Since says since when usher answers so.
func (m *MayUse) Since() string {
	return fmt.Sprintf("usher has answered this since %s, by webhook %d.", StampAge(m.AsOf), m.ID)
}

// Held says that the answer comes from memory; nothing if the inbox can be read.
func (t *Tenant) Held() string {
	if t.Unread == "" || t.MayUse == nil {
		return ""
	}
	age := ""
	if t.MayUse.Stale > 0 {
		age = ", from " + Span(t.MayUse.Stale.Round(time.Second)) + " ago"
	}
	return fmt.Sprintf("usher holds this in memory%s. It cannot read the inbox now, so a newer webhook may exist: %s.", age, t.Unread)
}

// Receipt says whether the receiver has taken the snapshot from which usher answers checks; if
// not, why, and what to do.
type Receipt struct {
	ID    string    `json:"id"` // of the webhook
	Taken bool      `json:"taken"`
	Since time.Time `json:"since"`         // when the receiver took it; else when the webhook came, or got its state
	State string    `json:"state"`         // of the webhook
	Why   string    `json:"why"`           // in words
	Do    string    `json:"do,omitempty"`  // in words
	Run   string    `json:"run,omitempty"` // the command for that
}

// NewReceipt says it of a webhook. opened is when usher opened its inbox, pause what holds the webhook back, or nil.
func NewReceipt(w *Webhook, opened time.Time, pause *inbox.Pause) *Receipt {
	r := &Receipt{ID: w.ID, Taken: w.State.Taken(), Since: w.Changed, State: string(w.State), Why: w.LastAnswer().Text()}
	if w.HeldBy != "" {
		r.Why = "it waits behind webhook " + w.HeldBy + " (" + w.HeldUp.Words() + ")"
	}
	again := "usher inbox redeliver "
	switch {
	case r.Taken && r.State != string(state.Stored) && w.Changed.Before(opened):
		r.Do = "If the inbox is a restored backup, the receiver may have a newer one: reconcile with " +
			"the billing service ('usher help reconcile' says how)."
	case r.Taken:
	case !w.Waits() && w.State != state.Parked:
		r.Do, r.Run = "If the receiver should have it, redeliver it.", again+w.ID
	case w.Waits() && pause != nil:
		r.Do, r.Run = "Resume the deliveries.", "usher inbox resume"+pause.Flag()
	case w.NoReceiver:
		r.Do = lane.GiveToReceiver + "."
	case w.HeldUp != nil && w.HeldUp.Down:
		r.Do = "Fix the receiver. usher then delivers by itself."
	case w.HeldUp != nil:
		r.Do, r.Run = "Fix the receiver. usher tries again by itself. To try it now, redeliver it.", again+w.HeldUp.Webhook
	case w.State == state.Parked:
		r.Do, r.Run = "Fix the receiver, then redeliver it.", again+w.ID
	}
	if w.Waits() {
		r.Since = w.Received
	}
	return r
}

// Words say whether the receiver has it.
func (r *Receipt) Words() string {
	switch {
	case r.State == string(state.Stored):
		return fmt.Sprintf("usher stored it, and delivers it to no receiver (webhook %s)", r.ID)
	case r.Taken && r.Do != "":
		return fmt.Sprintf("The receiver took it before usher opened this inbox, %s (webhook %s)", StampAge(r.Since), r.ID)
	case r.Taken:
		return fmt.Sprintf("The receiver has it, since %s (webhook %s)", StampAge(r.Since), r.ID)
	}
	return fmt.Sprintf("The receiver does not have it: webhook %s is %s (since %s)", r.ID, r.State, StampAge(r.Since))
}

// NotCounted says that the tenant's last invalid webhook does not count, why, and what to do; nothing if there is none.
func (t *Tenant) NotCounted() (words, why, do string) {
	w := t.Invalid
	if w == nil {
		return "", "", ""
	}
	words = fmt.Sprintf("usher rejected webhook %s of this tenant (%s), so it does not count", w.ID, StampAge(w.Received))
	if w.Unacceptable != "" {
		return words, Excerpt(w.Why) + ". It can't be accepted: " + w.Unacceptable + ".", "See what is in it, and discard it only if nobody needs it."
	}
	return words, Excerpt(w.Why), "See what is in it, then accept or discard it."
}
