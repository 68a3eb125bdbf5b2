package wire

import (
	"slices"
	"sync"
	"time"

	"usher/internal/clock"
)

// place is where a connection leads.
type place struct{ scheme, host string }

// pool has the idle connections. It returns the one that was used last, so that surplus ones grow
// old and are closed.
type pool struct {
	most  int
	limit time.Duration

	mu     sync.Mutex
	idle   []*conn // to all places, those that were used last at the end; guarded by mu
	due    bool    // a sweep will come; guarded by mu
	closed bool    // connections that come back are closed; guarded by mu
}

// take returns the idle connection that was used last, or nil. The caller must check it before it
// is used.
func (p *pool) take(where place) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
	for i, c := range slices.Backward(p.idle) {
		if c.where == where {
			p.idle = slices.Delete(p.idle, i, i+1)
			return c
		}
	}
	return nil
}

// put adds a connection that is ready for a call.
func (p *pool) put(c *conn) { p.add(false, c) }

// add adds connections, oldest first, in front of all others or behind them. It closes the oldest of
// them if there is no room.
func (p *pool) add(front bool, conns ...*conn) {
	p.mu.Lock()
	surplus := len(conns)
	if !p.closed {
		surplus = min(surplus, max(0, len(p.idle)+len(conns)-p.most))
	}
	at := len(p.idle)
	if front {
		at = 0
	}
	p.idle = slices.Insert(p.idle, at, conns[surplus:]...)
	if !p.due && len(p.idle) > 0 {
		p.due = true
		time.AfterFunc(p.limit/sweeps, p.sweep)
	}
	p.mu.Unlock()
	hangUp(conns[:surplus])
}

// sweeps is how often idle connections are checked within IdleTimeout. Otherwise those that the
// other side has closed would keep their descriptors.
const sweeps = 10

// sweep checks the connections that were not used since the last sweep. It takes them out for that:
// nobody waits for the lock, and nobody misses them.
func (p *pool) sweep() {
	now := time.Now()
	p.mu.Lock()
	p.due = false
	n := 0
	for n < len(p.idle) && clock.Age(p.idle[n].idleSince, now) >= p.limit/sweeps {
		n++
	}
	unused := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	p.mu.Unlock()
	good := unused[:0]
	for _, c := range unused {
		if c.usable(now) {
			good = append(good, c)
		} else {
			c.hangUp()
		}
	}
	p.add(true, good...)
}

func (p *pool) empty() {
	p.mu.Lock()
	gone := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	hangUp(gone)
}

// hangUp closes connections. Over TLS that is a write, so no lock may be held.
func hangUp(conns []*conn) {
	for _, c := range conns {
		c.hangUp()
	}
}

// usable reports whether an idle connection may be used.
func (c *conn) usable(now time.Time) bool {
	return clock.Age(c.idleSince, now) < c.lasts && c.quiet()
}
