package courier

import (
	"time"

	"usher/internal/inbox/record"
)

// Stats are figures of the moment. What the store has not noted yet counts as before.
type Stats struct {
	Figures
	Receivers map[string]ReceiverStats // by name; "" has what no receiver takes right now, if there is any
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

	// Lanes whose first webhook was tried in vain: because the receiver is down, or
	// because it does not take that webhook; and whether it has taken nothing since the
	// first of them failed.
	Missed, Refused int
	TakesNone       bool
}

// Load says how many bytes the webhooks of a term take, by what their store has said of each.
func (c *Courier) Load(t Term) record.Load {
	c.mu.Lock()
	defer c.mu.Unlock()
	if tm := c.terms[t]; tm != nil {
		return tm.load
	}
	return record.Load{}
}

// Stats counts.
func (c *Courier) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Receivers: make(map[string]ReceiverStats, len(c.receivers))}
	for _, rc := range c.receivers {
		s.Receivers[rc.Name] = ReceiverStats{Down: rc.breaker.open}
	}
	now := time.Now()
	for _, l := range c.lanes {
		f, name := l.figures(now), ""
		s.add(f)
		rc := c.route(l.key)
		if rc != nil {
			name = rc.Name
		}
		r := s.Receivers[name]
		r.add(f)
		if rc != nil && l.heldUp() {
			if l.down {
				r.Missed++
			} else {
				r.Refused++
			}
			taken := rc.accepted.After(l.waiting[0].Status.Attempts[0].At)
			r.TakesNone = !taken && (r.TakesNone || r.Missed+r.Refused == 1)
		}
		s.Receivers[name] = r
	}
	return s
}

func (f *Figures) add(g Figures) {
	f.Pending += g.Pending
	f.Oldest = max(f.Oldest, g.Oldest)
	f.Parked += g.Parked
}

func (l *lane) figures(now time.Time) Figures {
	f := Figures{Pending: len(l.waiting), Parked: len(l.parked)}
	for _, it := range l.waiting {
		f.Oldest = max(f.Oldest, now.Sub(it.Webhook.Received))
		if it.Status.Again.IsZero() {
			break // those behind it came later
		}
	}
	return f
}
