package clock

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// An Instant is a moment of this process. The time since then counts the sleep of the machine, and on Linux
// nobody makes it look longer or shorter by setting a clock.
type Instant struct {
	at    time.Time
	slept time.Duration // how long the machine had slept until then
}

// Now is this moment.
func Now() Instant { return Instant{time.Now(), slept()} }

// IsZero says whether nobody has set it.
func (i Instant) IsZero() bool { return i.at.IsZero() }

// Elapsed is how much time has passed since then.
func (i Instant) Elapsed() time.Duration { return Now().since(i) }

func (i Instant) since(then Instant) time.Duration {
	if !seesSleep {
		return Age(then.at, i.at)
	}
	return i.at.Sub(then.at) + max(0, i.slept-then.slept)
}

// A Pulse notices that this process stood still: it was stopped, or its machine slept or was moved. What
// waits in its sockets then is older than what others have done meanwhile.
type Pulse struct {
	mu    sync.Mutex
	last  Instant
	ended time.Time // when the last standstill ended
	log   *slog.Logger
}

const (
	// standstill is the shortest one that counts.
	standstill = 2 * time.Second
	// beatEvery is the time between two beats: a standstill may look longer by that much.
	beatEvery = time.Second / 4
)

// NewPulse returns a Pulse. What came for it two seconds before now or earlier has waited, in a socket that a
// service manager held: that counts as a standstill, too.
func NewPulse(log *slog.Logger) *Pulse {
	return &Pulse{last: Now(), ended: time.Now().Add(-standstill), log: log}
}

// Run beats until ctx ends.
func (p *Pulse) Run(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.beat()
		case <-ctx.Done():
			return
		}
	}
}

// StoodStill says whether there was a standstill that ended after this moment. The first question after it
// finds it, without waiting for the next beat.
func (p *Pulse) StoodStill(since time.Time) bool { return p.beat().After(since) }

func (p *Pulse) beat() (ended time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := Now()
	if pause := now.since(p.last); pause >= standstill {
		p.ended = now.at
		p.log.Warn("usher stood still: it was stopped, or its machine slept or was moved",
			"for", pause.Round(time.Second/10))
	}
	p.last = now
	return p.ended
}
