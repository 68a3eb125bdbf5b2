package courier

import (
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// note is what the store is told of an item: how it stands from then on.
type note struct {
	item   *item
	record record.Record
	whole  *webhookgate.Webhook // may be nil
}

// note has the store told, by tell, how an item stands. c.mu is held.
func (c *Courier) note(l *lane, it *item, r record.Record, whole *webhookgate.Webhook) {
	it.leaving = r.Status.State != record.Waiting
	l.notes = append(l.notes, &note{item: it, record: r, whole: whole})
}

// noted says whether a note of an item is under way.
func (l *lane) noted(it *item) bool {
	for _, n := range l.notes {
		if n.item == it {
			return true
		}
	}
	return false
}

// tell gives a lane's notes to the store, the next one once the last was noted. c.mu is
// not held.
func (c *Courier) tell(l *lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.telling {
		return
	}
	l.telling = true
	for len(l.notes) > 0 && !l.noting {
		n := l.notes[0]
		l.noting = true
		c.mu.Unlock()
		l.term.Note(n.record, n.whole, func() { c.noted(l, n) })
		c.mu.Lock()
	}
	l.telling = false
}

// noted is told that a lane's first note is as safe as it will be, and has the item stand
// so.
func (c *Courier) noted(l *lane, n *note) {
	c.mu.Lock()
	if len(l.notes) == 0 || l.notes[0] != n { // its term has ended, or it is told twice
		c.mu.Unlock()
		return
	}
	l.notes, l.noting = l.notes[1:], false
	n.item.Status = n.record.Status
	if state := n.record.Status.State; state != record.Waiting {
		l.drop(n.item)
		n.item.leaving = false
		if state == record.Parked {
			l.park(n.item)
		}
	}
	c.schedule(l)
	telling := l.telling
	select {
	case l.term.noted <- struct{}{}: // for a goroutine that waits in End
	default:
	}
	c.mu.Unlock()
	if !telling { // else who tells goes on
		c.tell(l)
		c.poke()
	}
}
