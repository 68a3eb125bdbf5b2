package inbox

import (
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
)

// A time in which usher may have missed webhooks: it answered some with a 5xx, or no gate was there to take them. It is
// in memory until the writer can store it.

// Missed is such a time. Several become one.
type Missed struct {
	From     time.Time `json:"from,omitzero"` // zero: nothing was missed
	To       time.Time `json:"to,omitzero"`
	Webhooks int       `json:"webhooks"` // how many got a 5xx
}

// Add returns both as one.
func (m Missed) Add(other Missed) Missed {
	switch {
	case m.From.IsZero():
		return other
	case other.From.IsZero():
		return m
	case other.From.Before(m.From):
		m.From = other.From
	}
	if other.To.After(m.To) {
		m.To = other.To
	}
	m.Webhooks += other.Webhooks
	return m
}

const (
	// minOutage is for how long no gate must be up and ready, so that webhooks count as missed.
	minOutage = time.Minute
	// beatInterval is how often a gate that is up and ready says so.
	beatInterval = 15 * time.Second
	// missedAge is how long something counts as missed.
	missedAge = 7 * 24 * time.Hour
)

// Miss notes a webhook that got a 5xx, and that its sender did not bring again.
func (s *Inbox) Miss(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed = s.missed.Add(Missed{at, at, 1})
}

// endMissed drops what is not stored yet, if it ended until then.
func (s *Inbox) endMissed(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.missed.To.After(until) {
		s.missed = Missed{}
	}
}

// missedInMemory returns what was missed and is not stored yet, by our clock.
func (s *Inbox) missedInMemory() Missed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missed
}

// A heartbeat is when this process last said whether its gate is up and ready.
type heartbeat struct {
	up bool
	at time.Time // zero: it never said so
}

// outage returns since when no gate was up, if that is for minOutage or more, by the database's clock: last is when one
// last said so. If that is in the future when this process first asks, the clock was set back meanwhile: nobody knows
// for how long no gate was up, and the outage has no length.
func (b *heartbeat) outage(last, now int64) (began int64, found bool) {
	wentBack := b.at.IsZero() && last-now >= clock.Micros(minOutage)
	return min(last, now), last > 0 && (now-last >= clock.Micros(minOutage) || wentBack)
}

// GateIsUp says that the gate takes webhooks from now on. So the inbox finds out at once whether there was an outage
// before.
func (s *Inbox) GateIsUp() {
	select {
	case s.gateIsUp <- struct{}{}:
	default:
	}
}

// beat says that the gate is up and ready, each beatInterval and when it ends, and stores what was missed.
func (s *Inbox) beat(up bool) {
	b := &s.heart
	due := up && clock.Since(b.at) >= beatInterval || b.up && !up
	inMemory := s.missedInMemory()
	if !due && inMemory.Webhooks == 0 {
		return
	}
	var outage Missed
	asked := time.Now()
	err := s.write(func(tx engine.Tx) error {
		var last, now int64
		tx.Queue("gate_up", func(r engine.Row) error { return r.Scan(&last) })
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		outage = Missed{}
		if due {
			if began, found := b.outage(last, now); found {
				outage = Missed{clock.Moment(began), clock.Moment(now), 0}
			}
			tx.Queue("gate_up_save", nil, now)
		}
		return storeMissed(tx, inMemory, outage, now, asked)
	})
	if err != nil {
		return
	}
	if !outage.From.IsZero() {
		s.cfg.Log.Warn("no gate was ready to take webhooks for a while: usher may have missed some",
			"from", outage.From, "to", outage.To)
	}
	if due {
		s.heart = heartbeat{up, asked}
	}
	s.asked.Store(s.asked.Load() || due)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	if s.missed.Webhooks -= inMemory.Webhooks; s.missed.Webhooks <= 0 {
		s.missed = Missed{}
	} else {
		s.missed.From = inMemory.To // about: they came after it
	}
}

// storeMissed adds to what is stored. asked is our time before the database's was read: so what is in memory may seem to
// have come a little later than it did, but never before a reconcile that had begun earlier.
func storeMissed(tx engine.Tx, inMemory, outage Missed, now int64, asked time.Time) error {
	if !inMemory.From.IsZero() {
		dated := func(at time.Time) time.Time { return clock.Moment(now - clock.Micros(asked.Sub(at))) }
		inMemory.From, inMemory.To = dated(inMemory.From), dated(inMemory.To)
	}
	all := inMemory.Add(outage)
	if all.From.IsZero() {
		return nil
	}
	queueMissed(tx, "missed_take", func(m Missed) { all = all.Add(m) })
	if err := tx.Send(); err != nil {
		return err
	}
	tx.Queue("missed_add", nil, all.From.UnixMicro(), all.To.UnixMicro(), int64(all.Webhooks))
	return nil
}

// queueMissed queues a statement whose rows are what was missed.
func queueMissed(tx engine.Tx, statement string, each func(Missed)) {
	tx.Queue(statement, func(r engine.Row) error {
		var from, to int64
		var m Missed
		err := r.Scan(&from, &to, &m.Webhooks)
		if err == nil {
			m.From, m.To = clock.Moment(from), clock.Moment(to)
			each(m)
		}
		return err
	})
}
