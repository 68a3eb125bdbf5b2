package inbox

import (
	"slices"
	"time"

	"usher/webhookgate"
)

// How records come into the courier's lanes: from the store, one by one as it takes them
// in, and all that it had at the start.

// restore takes in what the store had at the start.
func (c *courier) restore(records []*record) {
	// What was sent again by hand goes ahead of the rest of its lane.
	slices.SortStableFunc(records, func(a, b *record) int {
		x, y := a.status.Again, b.status.Again
		switch {
		case x.IsZero() == y.IsZero():
			return x.Compare(y)
		case y.IsZero():
			return -1
		default:
			return 1
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range records {
		l := c.lane(r.webhook.Lane)
		if r.status.State == Parked {
			l.parked = append(l.parked, r)
			continue
		}
		l.waiting = append(l.waiting, r)
		c.pending++
		c.schedule(l, time.Now())
	}
}

// take takes a record in that waits: a new one at its lane's end, one that is sent
// again at its front.
func (c *courier) take(r *record, again bool) {
	whole := r.webhook
	r = &record{id: r.id, webhook: slim(whole), status: r.status}
	c.mu.Lock()
	if whole.Body != nil && c.held < holdMost {
		r.whole = whole
		c.held += len(whole.Body)
	}
	l := c.lane(whole.Lane)
	var superseded []*record
	switch {
	case again:
		c.again(l, r)
	case c.keepLatest && whole.Snapshot:
		superseded = c.supersede(l)
		fallthrough
	default:
		l.waiting = append(l.waiting, r)
	}
	c.pending++
	c.schedule(l, time.Now())
	c.settle(superseded)
	c.mu.Unlock()
	c.poke()
}

// again puts a record in front of what its lane has waiting, but behind others that
// were sent again before it.
func (c *courier) again(l *lane, r *record) {
	l.parked = slices.DeleteFunc(l.parked, func(p *record) bool { return p.id == r.id })
	front := 0
	for front < len(l.waiting) && (l.busy && front == 0 || !l.waiting[front].status.Again.IsZero()) {
		front++
	}
	if front == 0 {
		l.failures, l.down, l.at = 0, false, time.Now()
	}
	l.waiting = slices.Insert(l.waiting, front, r)
}

// supersede takes out of a lane what waits, tried or not, as something newer has come.
// The lane's pauses stay: they are not the webhook's.
func (c *courier) supersede(l *lane) (gone []*record) {
	l.waiting = slices.DeleteFunc(l.waiting, func(w *record) bool {
		being := l.busy && w == l.waiting[0]
		if being || !w.webhook.Snapshot || !w.status.Again.IsZero() {
			return false
		}
		w.enter(Superseded, newerCame)
		c.release(w)
		gone = append(gone, w)
		return true
	})
	c.pending -= len(gone)
	return gone
}

// waits says whether a record is in its lane, to be delivered or being so.
func (c *courier) waits(key webhookgate.Lane, id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[key]
	return l != nil && slices.ContainsFunc(l.waiting, func(r *record) bool { return r.id == id })
}
