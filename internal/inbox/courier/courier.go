// Package courier decides when and how the inbox's webhooks are tried: one at a time in a
// lane and in order, lanes independent of each other, with backoff, and gently while a
// receiver is down. What must survive the process is a store's, which gives the courier
// leave to deliver in a [Term].
package courier

import (
	"context"
	"log/slog"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// A Term is a store's leave to deliver some lanes, for as long as it is held. The file
// store has one that never ends; the shared store has one for each part of the lanes that
// this replica delivers. A Term must be comparable.
type Term interface {
	// Held says whether a delivery may begin, and whether one under way may still
	// write to the receiver.
	Held() bool

	// Content reads a webhook whole; record.ErrNotFound, or an error that says
	// record.ErrDamaged.
	Content(id uint64) (*webhookgate.Webhook, error)

	// Note takes down how r stands now and returns at once. It calls noted, once, when
	// what it took down is as safe as the store wants it before the lane's next
	// delivery may begin (which may be before Note returns), or when the term has
	// ended. whole is r's webhook with its content where the courier has it, else nil.
	// Notes of one lane are given one at a time, in order: the next only after noted.
	// It is called without any of the courier's locks held; r is the store's to keep.
	Note(r record.Record, whole *webhookgate.Webhook, noted func())
}

// Receiver is one who takes webhooks.
type Receiver struct {
	Name        string
	Try         func(context.Context, *webhookgate.Webhook) webhookgate.Attempt // one try
	Concurrency int                                                             // deliveries under way at once; at least 1
}

// Config is what a courier needs to know.
type Config struct {
	Receivers []Receiver
	// Route names the receiver of a lane's webhooks; "" or an unknown name: nobody takes
	// them at the moment, and they wait. Nil: all go to the first receiver.
	Route func(webhookgate.Lane) string
	// Attempts and MaxAge are when a webhook is parked. Both required.
	Attempts int
	MaxAge   time.Duration
	// KeepLatest has a snapshot that waits superseded by a newer one of its tenant.
	KeepLatest bool
	// Log is told what becomes of each webhook. Required.
	Log *slog.Logger
	// Pause is any time up to ceiling. Nil: full jitter.
	Pause func(ceiling time.Duration) time.Duration
}

// Stats are figures of the moment. What the store has not noted yet counts as before.
type Stats struct {
	Figures
	Receivers map[string]ReceiverStats // by name; "" has what nobody takes at the moment
}

// Figures count webhooks.
type Figures struct {
	Pending int           // waiting or being delivered
	Oldest  time.Duration // age of the oldest of them
	Parked  int
}

// ReceiverStats are the figures of one receiver.
type ReceiverStats struct {
	Figures
	Down bool // it seems to be, and is tried with one delivery at a time
}

// Courier delivers.
type Courier struct{ cfg Config }

// New makes a courier. It delivers while Run runs.
func New(cfg Config) *Courier { return &Courier{cfg: cfg} }

// Run delivers until ctx ends, and returns when the deliveries under way have ended. Those
// run under hard.
func (c *Courier) Run(ctx, hard context.Context) {}

// Begin takes in what waits and what is parked in the lanes of a term. What was sent again
// by hand comes first, then what is older.
func (c *Courier) Begin(t Term, unfinished []*record.Record) {}

// Take takes one more in that waits: at its lane's end, or where it is sent again by hand,
// ahead of what was not. whole is its webhook with its content, or nil.
func (c *Courier) Take(t Term, r *record.Record, whole *webhookgate.Webhook, again bool) {}

// Remove takes out what waits and is not being delivered, or is parked, and returns it
// as it stands. The next of its lane may be delivered at once.
func (c *Courier) Remove(t Term, lane webhookgate.Lane, id uint64) (record.Record, bool) {
	return record.Record{}, false
}

// Waits says whether a webhook is to be delivered or is being so.
func (c *Courier) Waits(lane webhookgate.Lane, id uint64) bool { return false }

// Find returns what waits or is parked as it stands now.
func (c *Courier) Find(lane webhookgate.Lane, id uint64) (record.Record, bool) {
	return record.Record{}, false
}

// Retry has a lane tried now, whatever it waits for.
func (c *Courier) Retry(lane webhookgate.Lane, id uint64) {}

// End drops the lanes of a term and cuts off its deliveries; it returns when none is under
// way. Notes that the store has not got yet are dropped too.
func (c *Courier) End(t Term) {}

// Stats counts.
func (c *Courier) Stats() Stats { return Stats{} }
