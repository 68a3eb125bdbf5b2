package courier

import (
	"slices"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// HoldBack has nothing tried that one of pauses covers, and all else as before. No delivery of it
// begins once HoldBack has returned; those under way may finish. What is held back keeps its
// place.
func (c *Courier) HoldBack(pauses []record.Pause) {
	c.mu.Lock()
	c.pauses = slices.Clone(pauses)
	for _, l := range c.lanes {
		c.schedule(l)
	}
	c.mu.Unlock()
	c.poke()
}

// holdsBack says whether somebody has paused the deliveries of a lane to a receiver. c.mu is
// held.
func (c *Courier) holdsBack(key webhookgate.Lane, receiver string) bool {
	return slices.ContainsFunc(c.pauses, func(p record.Pause) bool { return p.Covers(key.Platform, key.Tenant, receiver) })
}

// paused says whether somebody has paused what has its turn.
func (c *Courier) paused(t *turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holdsBack(t.lane.key, t.receiver.Name)
}

// RemoveAll takes out all of a lane that waits or is parked, and returns it as it stands. Where
// one is being delivered, or the store is still writing how one stands, or the term has ended, it takes
// out nothing, and says no. The caller has stopped the lane: in one in which much waits the next delivery would be
// under way whenever it is asked for, and what comes meanwhile would overtake what was taken out, if
// that comes back.
func (c *Courier) RemoveAll(t Term, key webhookgate.Lane) ([]record.Record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.terms[t] == nil {
		return nil, false
	}
	l := c.lanes[key]
	if l == nil {
		return nil, true
	}
	if l.term.Term != t || l.busy || len(l.notes) > 0 {
		return nil, false
	}
	var out []record.Record
	for _, it := range slices.Concat(l.waiting, l.parked) {
		c.release(it)
		l.drop(it)
		out = append(out, it.Record)
	}
	c.schedule(l)
	return out, true
}

// Stop has nothing of a lane begin until GoOn. What is being delivered goes on. Several can stop a lane
// at once; it goes on when all of them have called GoOn.
func (c *Courier) Stop(key webhookgate.Lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped[key]++
	if l := c.lanes[key]; l != nil {
		c.schedule(l)
	}
}

// GoOn takes back one Stop.
func (c *Courier) GoOn(key webhookgate.Lane) {
	c.mu.Lock()
	if c.stopped[key]--; c.stopped[key] == 0 {
		delete(c.stopped, key)
	}
	if l := c.lanes[key]; l != nil {
		c.schedule(l)
	}
	c.mu.Unlock()
	c.poke()
}
