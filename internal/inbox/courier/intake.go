package courier

import (
	"cmp"
	"context"
	"slices"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// How webhooks come into the courier's lanes, and leave them otherwise than by delivery.

// Forever is to be embedded in a Term that never ends. Its deliveries are not fenced.
type Forever struct{}

// Held is always so.
func (Forever) Held() bool { return true }
func (Forever) forever()   {}

// Begin takes in what waits and what is parked in the lanes of a term, by age; what was
// sent again by hand has the place in its lane that Take would give it. Nothing is taken in
// a term before.
func (c *Courier) Begin(t Term, unfinished []*record.Record) {
	unfinished = slices.Clone(unfinished)
	slices.SortFunc(unfinished, func(a, b *record.Record) int {
		return cmp.Or(a.Status.Again.Compare(b.Status.Again), cmp.Compare(a.ID, b.ID)) // zero: before all
	})
	c.mu.Lock()
	tm := &term{Term: t, idle: make(chan struct{}), noted: make(chan struct{}, 1)}
	_, forever := t.(interface{ forever() })
	tm.fenced = !forever
	tm.ctx, tm.cancel = context.WithCancel(context.Background())
	c.terms[t] = tm
	homeless := 0
	for _, r := range unfinished {
		l := c.lane(tm, r.Webhook.Lane)
		if r.Status.State == record.Waiting && c.route(l.key) == nil {
			homeless++
		}
		switch it := newItem(l, r); {
		case r.Status.State == record.Parked:
			l.park(it)
		case !r.Status.Again.IsZero():
			l.again(it)
		default:
			l.wait(len(l.waiting), it)
		}
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

// lane finds the lane, or makes it. c.mu is held.
func (c *Courier) lane(t *term, key webhookgate.Lane) *lane {
	l := c.lanes[key]
	if l == nil {
		l = &lane{key: key, term: t}
		c.lanes[key] = l
	}
	return l
}

// newItem holds as little as can be: a million of them may wait.
func newItem(l *lane, r *record.Record) *item {
	w := record.Slim(r.Webhook)
	w.Lane = l.key
	if w.Type == webhookgate.TenantProvisioningChange {
		w.Type = webhookgate.TenantProvisioningChange // the constant's memory, not its own
	}
	return &item{Record: record.Record{ID: r.ID, Webhook: w, Status: r.Status, Size: r.Size}}
}

// Take takes one more in that waits: at its lane's end, or where it is sent again by hand,
// ahead of what came after it and was not. whole is its webhook with its content, or nil. One
// that is parked is taken in as that.
func (c *Courier) Take(t Term, r *record.Record, whole *webhookgate.Webhook, again bool) {
	c.mu.Lock()
	tm := c.terms[t]
	if tm == nil || tm.ended {
		c.mu.Unlock()
		return
	}
	l := c.lane(tm, r.Webhook.Lane)
	it := newItem(l, r)
	if whole != nil && c.held < holdMost {
		it.whole = whole
		c.held += len(whole.Body)
	}
	switch {
	case r.Status.State == record.Parked:
		l.park(it)
	case again:
		l.again(it)
	case c.cfg.KeepLatest && it.Webhook.Snapshot:
		c.supersede(l)
		fallthrough
	default:
		l.wait(len(l.waiting), it)
	}
	if l.queue == nil || again || len(l.notes) > 0 {
		c.schedule(l)
	}
	c.mu.Unlock()
	c.tell(l)
	c.poke()
}

// again puts it in front of what waits, but behind what is older, which would undo it, and
// behind others that were sent again before it.
func (l *lane) again(it *item) {
	if n := slices.IndexFunc(l.parked, func(p *item) bool { return p.ID == it.ID }); n >= 0 {
		l.drop(l.parked[n])
	}
	front := 0
	for front < len(l.waiting) {
		before := l.waiting[front]
		if being := l.busy && front == 0; !being && before.Status.Again.IsZero() && before.ID > it.ID {
			break
		}
		front++
	}
	if front == 0 {
		l.reset()
	}
	l.wait(front, it)
}

// supersede has the snapshots go that wait, tried or not, as something newer has come. The
// lane's pauses stay: they are not the webhook's. c.mu is held.
func (c *Courier) supersede(l *lane) {
	for n, it := range l.waiting {
		if l.busy && n == 0 || it.leaving || !it.Webhook.Snapshot || !it.Status.Again.IsZero() {
			continue
		}
		r := it.Record
		r.Enter(record.Superseded, newerCame)
		c.note(l, it, r, it.whole)
		c.release(it)
	}
}

// release lets go of the content of an item. c.mu is held.
func (c *Courier) release(it *item) {
	if it.whole != nil {
		c.held -= len(it.whole.Body)
		it.whole = nil
	}
}

// Remove takes out what waits and is not being delivered, or is parked, and returns it
// as it stands. The next of its lane may be delivered at once.
func (c *Courier) Remove(t Term, key webhookgate.Lane, id uint64) (record.Record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[key]
	if l == nil || l.term.Term != t {
		return record.Record{}, false
	}
	it := l.find(id)
	if it == nil || l.noted(it) || l.busy && it == l.waiting[0] {
		return record.Record{}, false
	}
	if len(l.waiting) > 0 && it == l.waiting[0] {
		l.reset()
	}
	l.drop(it)
	c.release(it)
	c.schedule(l)
	c.poke()
	return it.Record, true
}

// Waits says whether a webhook is to be delivered or is being so.
func (c *Courier) Waits(key webhookgate.Lane, id uint64) bool {
	r, ok := c.Find(key, id)
	return ok && r.Status.State == record.Waiting
}

// Idle says whether nothing of a lane waits.
func (c *Courier) Idle(key webhookgate.Lane) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[key]
	return l == nil || len(l.waiting) == 0
}

// Find returns what waits or is parked as it stands now.
func (c *Courier) Find(key webhookgate.Lane, id uint64) (record.Record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lanes[key]; l != nil {
		if it := l.find(id); it != nil {
			return it.Record, true
		}
	}
	return record.Record{}, false
}

// Retry has the lane of a webhook that waits tried now, whatever it waits for.
func (c *Courier) Retry(key webhookgate.Lane, id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[key]
	if l == nil || l.find(id) == nil {
		return
	}
	l.at, l.wish, l.down = time.Time{}, time.Time{}, false
	c.schedule(l)
	if l.queue != nil {
		l.queue.breaker.next = time.Time{}
	}
	c.poke()
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
