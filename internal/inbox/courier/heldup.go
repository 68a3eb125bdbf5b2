package courier

import (
	"slices"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// HeldUp is a lane whose first webhook was tried in vain, and holds up those behind it.
type HeldUp struct {
	Lane     webhookgate.Lane
	Receiver string
	ID       uint64 // of the first
	Received time.Time
	Tries    int
	Last     record.Attempt // its last try
	Down     bool           // the receiver as a whole seems to be down: the webhook has no fault
	Next     time.Time      // its next try; before that, while the receiver is down, as soon as it is back
	Behind   int            // how many wait behind it
}

// HeldUp returns the lanes that are held up, the one that waits longest first; of those that this
// replica delivers.
func (c *Courier) HeldUp() (all []HeldUp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lanes {
		rc := c.route(l.key)
		if rc == nil || !l.heldUp() {
			continue
		}
		first := l.waiting[0]
		all = append(all, HeldUp{
			Lane: l.key, Receiver: rc.Name, ID: first.ID, Received: first.Webhook.Received, Tries: first.Status.Tries,
			Last: first.Status.Attempts[len(first.Status.Attempts)-1], Down: l.down, Next: l.at, Behind: len(l.waiting) - 1,
		})
	}
	slices.SortFunc(all, func(a, b HeldUp) int { return a.Received.Compare(b.Received) })
	return all
}

// heldUp says whether the first of a lane was tried in vain. Not one that waits for nothing but its
// turn since the receiver is back: it would be blamed for what was the receiver's fault.
func (l *lane) heldUp() bool {
	return len(l.waiting) > 0 && l.failures > 0 && !l.woken && len(l.waiting[0].Status.Attempts) > 0
}
