package inbox

import (
	"sync"
	"sync/atomic"
	"time"

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

// scanMissed reads what was missed, and when a gate was last up.
func scanMissed(r engine.Row) (m Missed, gateUp int64, err error) {
	var from, to int64
	err = r.Scan(&from, &to, &m.Webhooks, &gateUp)
	m.From, m.To = momentOrZero(from), momentOrZero(to)
	return m, gateUp, err
}

// missing is what was missed and is not stored yet, by our clock.
type missing struct {
	asked atomic.Bool // the gate has said that it is up, and knows whether there was an outage before

	mu     sync.Mutex // guards what follows
	missed Missed
}

// Miss notes a webhook that got a 5xx, and that its sender did not bring again.
func (m *missing) Miss(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.missed = m.missed.Add(Missed{at, at, 1})
}

// endMissed drops what is not stored yet, if it ended until then.
func (m *missing) endMissed(until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.missed.To.After(until) {
		m.missed = Missed{}
	}
}

// missedInMemory returns what was missed and is not stored yet, by our clock.
func (m *missing) missedInMemory() Missed {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.missed
}

// storedMissed forgets what is stored now.
func (m *missing) storedMissed(stored Missed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.missed.Webhooks -= stored.Webhooks; m.missed.Webhooks <= 0 {
		m.missed = Missed{}
	} else {
		m.missed.From = stored.To // about: they came after it
	}
}
