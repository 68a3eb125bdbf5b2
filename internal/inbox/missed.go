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
		var stored Missed
		var last, now int64
		tx.Queue("missed_lock", func(r engine.Row) (err error) { stored, last, err = scanMissed(r); return err })
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		// So what is in memory may seem to have come a little later than it did, but never before a reconcile that had begun
		// earlier.
		dated := func(at time.Time) time.Time { return clock.Moment(now - clock.Micros(asked.Sub(at))) }
		all, gateUp := stored, last
		if !inMemory.From.IsZero() {
			all = all.Add(Missed{dated(inMemory.From), dated(inMemory.To), inMemory.Webhooks})
		}
		outage = Missed{}
		if due {
			if began, found := b.outage(last, now); found {
				outage = Missed{clock.Moment(began), clock.Moment(now), 0}
			}
			gateUp = now
		}
		all = all.Add(outage)
		tx.Queue("missed_save", nil, microsOrZero(all.From), microsOrZero(all.To), int64(all.Webhooks), gateUp)
		return nil
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

func (s *Inbox) beatIfDue() {
	if s.health.lastErr() == nil && !s.cfg.ReadOnly {
		s.beat(s.cfg.GateUp != nil && s.cfg.GateUp() && s.Err() == nil)
	}
}

// endMissed notes that nothing is missed any more that ended until then.
func (t *turn) endMissed(until time.Time) {
	t.tx.Queue("missed_end", nil, until.UnixMicro(), t.Now)
	t.person = true
	t.Then(func() { t.s.endMissed(t.s.ours(until)) })
}

// scanMissed reads what was missed, and when a gate was last up.
func scanMissed(r engine.Row) (m Missed, gateUp int64, err error) {
	var from, to int64
	err = r.Scan(&from, &to, &m.Webhooks, &gateUp)
	m.From, m.To = momentOrZero(from), momentOrZero(to)
	return m, gateUp, err
}
