package webhookgate

import (
	"crypto/sha256"
	"sync"
	"time"
)

const (
	// secondAttempt is how long the gate waits for the service's second attempt before it reports a change as
	// missed.
	secondAttempt = time.Minute

	// maxMissedChanges is how many changes may wait for their second attempt. Further ones are reported at once.
	maxMissedChanges = 10_000
)

// missed remembers the changes that got a 5xx until they come in after all, or for a minute: then it reports them.
// Copies of a change count once.
type missed struct {
	report func(at time.Time) // nil: nobody is told

	mu      sync.Mutex // guards what follows
	waiting map[[sha256.Size]byte]*missedChange
}

type missedChange struct {
	at    time.Time // when it arrived first
	timer *time.Timer
}

// add notes a change that got a 5xx. A digest of zeros is not known.
func (m *missed) add(digest [sha256.Size]byte, at time.Time) {
	if m.report == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.waiting[digest]; known != nil {
		known.timer.Reset(secondAttempt)
		return
	}
	if digest == ([sha256.Size]byte{}) || len(m.waiting) >= maxMissedChanges {
		m.report(at)
		return
	}
	if m.waiting == nil {
		m.waiting = make(map[[sha256.Size]byte]*missedChange)
	}
	m.waiting[digest] = &missedChange{at, time.AfterFunc(secondAttempt, func() {
		if m.settle(digest) {
			m.report(at)
		}
	})}
}

// settle notes that a change came in after all, and returns whether it was missed.
func (m *missed) settle(digest [sha256.Size]byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.waiting[digest]
	if known == nil {
		return false
	}
	known.timer.Stop()
	delete(m.waiting, digest)
	return true
}

// reportAll reports what is missed so far: usher is shutting down.
func (m *missed) reportAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for digest, known := range m.waiting {
		known.timer.Stop()
		delete(m.waiting, digest)
		m.report(known.at)
	}
}
