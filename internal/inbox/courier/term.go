package courier

import (
	"cmp"
	"context"
	"slices"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// A Term is a store's leave to deliver some lanes, for as long as it is held. The file
// store has one that never ends; the shared store has one for each part of the lanes that
// this replica delivers. A Term must be comparable.
type Term interface {
	// Held says whether a delivery may begin, and whether one under way may still
	// write to the receiver. It must be quick and must not call the courier.
	Held() bool

	// Content reads a webhook whole, unless ctx ends first; record.ErrNotFound, or an error that says
	// record.ErrDamaged.
	Content(ctx context.Context, id uint64) (*webhookgate.Webhook, error)

	// Note takes down how r stands now and returns at once. It calls noted, once, when
	// what it took down is as safe as the store wants it before the lane's next
	// delivery may begin (which may be before Note returns), or when the term has
	// ended. whole is r's webhook with its content where the courier has it, else nil.
	// Notes of one lane are given one at a time, in order: the next only after noted.
	// It is called without any of the courier's locks held; r is the store's to keep.
	Note(r record.Record, whole *webhookgate.Webhook, noted func())
}

// term is a store's Term, and what is under way in it.
type term struct {
	Term
	ctx      context.Context // ends with it
	cancel   context.CancelFunc
	ended    bool
	underway int
	load     record.Load
	idle     chan struct{} // closed once it has ended and nothing is under way
	noted    chan struct{} // something was noted of it
}

// Begin takes in what waits and what is parked in the lanes of a term. Nothing is taken in
// a term before.
func (c *Courier) Begin(t Term, unfinished []*record.Record) {
	unfinished = slices.Clone(unfinished)
	slices.SortFunc(unfinished, func(a, b *record.Record) int { return cmp.Compare(a.ID, b.ID) })
	c.mu.Lock()
	tm := &term{Term: t, idle: make(chan struct{}), noted: make(chan struct{}, 1)}
	tm.ctx, tm.cancel = context.WithCancel(context.Background())
	c.terms[t] = tm
	homeless := 0
	for _, r := range unfinished {
		l := c.lane(tm, r.Webhook.Lane)
		if r.Status.State == record.Waiting && c.route(l.key) == nil {
			homeless++
		}
		l.put(newItem(l, r), !r.Status.Again.IsZero())
		if len(l.waiting) > 0 {
			l.remember(&l.waiting[0].Status)
		}
		if l.queue == nil {
			c.schedule(l)
		}
	}
	c.mu.Unlock()
	c.poke()
	if homeless > 0 {
		c.cfg.Log.Warn("webhooks wait, but no receiver takes their platforms: give these to a receiver, or set USHER_WEBHOOK_FORWARD_URL", "webhooks", homeless)
	}
}

// remember has the pauses go on from where they were in an earlier term. The first is tried at once, but only once:
// restarts must not use up its tries within minutes.
func (l *lane) remember(first *record.Status) {
	l.failures = first.Counted
	if n := len(first.Attempts); n > 0 {
		l.last = first.Attempts[n-1].At
	}
}

// End ends a term: none of its deliveries begins any more, and those under way may finish,
// and be noted, until ctx ends; then they are cut off, and what is not noted is dropped. Its
// lanes are dropped in any case. Who calls it must not hold a lock that the term's methods take.
func (c *Courier) End(ctx context.Context, t Term) {
	c.mu.Lock()
	tm := c.terms[t]
	if tm == nil || tm.ended {
		c.mu.Unlock()
		return
	}
	tm.ended = true
	for _, l := range c.lanes {
		if l.term == tm {
			c.schedule(l) // which takes it out
		}
	}
	if tm.underway == 0 {
		close(tm.idle)
	}
	c.mu.Unlock()
	defer tm.cancel()
	defer context.AfterFunc(ctx, tm.cancel)()
	<-tm.idle
	for c.noting(tm) && ctx.Err() == nil {
		select {
		case <-tm.noted:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, l := range c.lanes {
		if l.term != tm {
			continue
		}
		for _, it := range l.waiting {
			c.release(it)
		}
		l.notes, l.waiting, l.parked = nil, nil, nil
		delete(c.lanes, key)
	}
	delete(c.terms, t)
}

// noting says whether the store has not noted all yet that it was, or is to be, told in a term.
func (c *Courier) noting(tm *term) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lanes {
		if l.term == tm && len(l.notes) > 0 {
			return true
		}
	}
	return false
}
