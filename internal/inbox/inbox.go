package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"usher/webhookgate"
)

// Config is what an inbox needs to know.
type Config struct {
	// URL says where webhooks are kept: file:/path. Required without NATS.
	URL string
	// NATS has them kept by a cluster, for several replicas.
	NATS *NATS
	// Try sends a webhook to the receiver once. Required.
	Try func(context.Context, *webhookgate.Webhook) webhookgate.Attempt
	// Attempts and MaxAge are when a webhook is parked. Both required.
	Attempts int
	MaxAge   time.Duration
	// Concurrency is how many deliveries may be under way at once. Required.
	Concurrency int
	// KeepLatest has a snapshot that waits superseded by a newer one of its tenant.
	KeepLatest bool
	// DedupSize is how many lanes' memories are held in memory; those of all are on
	// disk. DedupWindow is how long a delivered snapshot counts as held by the
	// receiver; zero turns dedup off. DedupSize is required.
	DedupSize   int
	DedupWindow time.Duration
	// Log is told what becomes of each webhook. Required.
	Log *slog.Logger

	pause func(time.Duration) time.Duration // tests' own: the courier's
}

// Inbox keeps webhooks and delivers them.
type Inbox struct {
	store   Store
	run     func(ctx, hard context.Context)
	stats   func() Stats
	courier *courier   // nil: where several replicas share the store, one comes with each lease
	acting  sync.Mutex // one redelivery at a time: what it checks must still hold when it acts
}

// Open opens the store. What waits there is delivered by Run.
func Open(cfg Config) (*Inbox, error) {
	if cfg.NATS != nil {
		return openShared(cfg)
	}
	path, ok := strings.CutPrefix(cfg.URL, "file:")
	if !ok || path == "" {
		return nil, fmt.Errorf("%q is no inbox that this version knows: file:/path", cfg.URL)
	}
	c := newCourier(cfg)
	store, err := openBolt(path, cfg.DedupSize, cfg.DedupWindow, cfg.Log, c)
	if err != nil {
		return nil, err
	}
	c.store = store
	records, err := store.Unfinished()
	if err != nil {
		store.Close()
		return nil, fmt.Errorf("the inbox %s can't be read: %w", path, err)
	}
	for _, r := range records {
		if r.status.Why == ErrDamaged.Error() {
			cfg.Log.Error("webhook damaged, parked", "id", r.id, "webhook", r.webhook.ID)
		}
	}
	c.restore(records)
	return &Inbox{store: store, run: c.run, stats: c.stats, courier: c}, nil
}

// openShared opens a store that other replicas use as well. One of them delivers.
func openShared(cfg Config) (*Inbox, error) {
	store, err := openJetStream(cfg.NATS, cfg.DedupWindow, cfg.Log)
	if err != nil {
		return nil, err
	}
	run := func(ctx, hard context.Context) {
		store.run(ctx, hard, func() *courier {
			c := newCourier(cfg)
			c.store, c.may, c.awaitNotes = store, store.leading, true
			return c
		})
	}
	return &Inbox{store: store, run: run, stats: store.stats}, nil
}

func newCourier(cfg Config) *courier {
	pause := cfg.pause
	if pause == nil {
		pause = fullJitter
	}
	return &courier{
		try: cfg.Try, attempts: cfg.Attempts, maxAge: cfg.MaxAge, keepLatest: cfg.KeepLatest,
		log: cfg.Log, pause: pause,
		wake:    make(chan struct{}, 1),
		lanes:   make(map[webhookgate.Lane]*lane),
		breaker: newBreaker(cfg.Concurrency),
	}
}

// Keep takes a webhook in; see webhookgate.Config.Keep.
func (i *Inbox) Keep(w *webhookgate.Webhook) (duplicateOf string, err error) {
	return i.store.Append(w)
}

// Run delivers until ctx ends, and returns when the deliveries under way have ended;
// when hard ends those are broken off, and wait for the next start.
func (i *Inbox) Run(ctx, hard context.Context) { i.run(ctx, hard) }

// Close closes the store. Neither Keep nor Run may be under way.
func (i *Inbox) Close() error { return i.store.Close() }

// Err says why the inbox takes nothing in any more; nil while it does.
func (i *Inbox) Err() error { return i.store.Err() }

// List returns the entries that f selects, newest first.
func (i *Inbox) List(f Filter) ([]Entry, error) { return i.store.List(f) }

// Show returns one webhook.
func (i *Inbox) Show(id uint64) (*Item, error) { return i.store.Show(id) }

// Forget drops the dedup memory of a tenant, and says of how many lanes.
func (i *Inbox) Forget(tenant string) (int, error) { return i.store.Forget(tenant) }

// Redeliver has a webhook sent again, ahead of what its lane has waiting, with a
// fresh count of tries. What is not the latest of its lane would undo what came
// after it, and needs force.
func (i *Inbox) Redeliver(id uint64, force bool) error {
	i.acting.Lock()
	defer i.acting.Unlock()
	r, err := i.store.Read(id)
	if err != nil {
		return err
	}
	lane := r.webhook.Lane
	if r.status.State == Waiting || i.courier != nil && i.courier.waits(lane, id) {
		return ErrWaiting
	}
	newest, ok, err := i.store.Newest(lane)
	if err != nil {
		return err
	}
	if ok && newest.ID > id && !force {
		return &OverwriteError{ID: id, Latest: newest}
	}
	now := time.Now()
	r.status = Status{State: Waiting, Changed: now, Again: now, Attempts: r.status.Attempts}
	err = i.store.Again(r, force)
	if !errors.Is(err, errOvertaken) {
		return err
	}
	if newest, _, err = i.store.Newest(lane); err != nil {
		return err
	}
	return &OverwriteError{ID: id, Latest: newest}
}

// Stats are figures of the moment.
type Stats struct {
	Pending int           // waiting or being delivered
	Oldest  time.Duration // age of the oldest of them
	Parked  int

	Delivering bool // it is this replica that delivers
	Unknown    bool // nothing could be read yet: the figures say nothing
}

// Stats counts.
func (i *Inbox) Stats() Stats { return i.stats() }
