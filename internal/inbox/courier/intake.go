package courier

import (
	"slices"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

// How webhooks come into the courier's lanes, and leave them otherwise than by delivery.

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
	if w.Type == content.TenantProvisioningChange {
		w.Type = content.TenantProvisioningChange // the constant's memory, not its own
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
		c.held += cap(whole.Body) + holdBeside
	}
	if c.cfg.KeepLatest && it.Webhook.Snapshot && it.Status.State != record.Parked && !again {
		c.supersede(l)
	}
	l.put(it, again)
	if l.queue == nil || again || len(l.notes) > 0 {
		c.schedule(l)
	}
	c.mu.Unlock()
	c.tell(l)
	c.poke()
}

// put puts an item where it belongs in its lane.
func (l *lane) put(it *item, again bool) {
	switch {
	case it.Status.State == record.Parked:
		l.park(it)
	case again:
		l.again(it)
	default:
		l.wait(len(l.waiting), it)
	}
}

// again puts it where it stood: in front of what is newer, which it would undo.
func (l *lane) again(it *item) {
	if n := slices.IndexFunc(l.parked, func(p *item) bool { return p.ID == it.ID }); n >= 0 {
		l.drop(l.parked[n])
	}
	front := 0
	for front < len(l.waiting) && (l.busy && front == 0 || l.waiting[front].ID < it.ID) {
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
		c.held -= cap(it.whole.Body) + holdBeside
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

// Waits says whether a webhook is to be delivered or is being so. Not one that the store is still to note as something else.
func (c *Courier) Waits(key webhookgate.Lane, id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[key]
	if l == nil {
		return false
	}
	it := l.find(id)
	return it != nil && it.Status.State == record.Waiting && !it.leaving
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

// LaneOf is the lane in which a webhook waits or is parked; of others the empty one.
func (c *Courier) LaneOf(id uint64) webhookgate.Lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, l := range c.lanes {
		if l.find(id) != nil {
			return key
		}
	}
	return webhookgate.Lane{}
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
