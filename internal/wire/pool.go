package wire

import (
	"slices"
	"sync"
	"time"

	"usher/internal/clock"
)

// destination is where a connection leads to.
type destination struct{ scheme, host string }

// pool has the idle connections. It returns the one that was used last, so that surplus connections
// grow old and are closed.
type pool struct {
	maxIdle     int
	idleTimeout time.Duration

	mu       sync.Mutex // guards what follows
	idle     []*conn    // to all destinations, the one that was used last at the end
	sweepDue bool       // a timer will call sweep
	closed   bool       // put closes connections, until the next take
}

// take returns the idle connection that was used last, or nil. The caller must check that it is
// usable.
func (p *pool) take(to destination) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
	for i, c := range slices.Backward(p.idle) {
		if c.to == to {
			p.idle = slices.Delete(p.idle, i, i+1)
			return c
		}
	}
	return nil
}

// put adds a connection that has just been used.
func (p *pool) put(c *conn) { p.add(false, c) }

// add adds connections in front of all others, or behind them. The first of conns is the oldest. If
// there is no room for all of conns, add closes the oldest of them.
func (p *pool) add(front bool, conns ...*conn) {
	p.mu.Lock()
	surplus := len(conns)
	if !p.closed {
		surplus = min(surplus, max(0, len(p.idle)+len(conns)-p.maxIdle))
	}
	at := len(p.idle)
	if front {
		at = 0
	}
	p.idle = slices.Insert(p.idle, at, conns[surplus:]...)
	if !p.sweepDue && len(p.idle) > 0 {
		p.sweepDue = true
		time.AfterFunc(p.idleTimeout/sweeps, p.sweep)
	}
	p.mu.Unlock()
	hangUp(conns[:surplus])
}

// sweeps is how often idle connections are checked within IdleTimeout. Without these checks, connections
// that the other side has closed would keep their descriptors.
const sweeps = 10

// sweep checks the connections that were not used since the last sweep. It removes them from the pool
// while it checks them, so that it need not hold the lock. No call misses them: the pool returns the
// others first.
func (p *pool) sweep() {
	now := time.Now()
	p.mu.Lock()
	p.sweepDue = false
	n := 0
	for n < len(p.idle) && clock.Age(p.idle[n].idleSince, now) >= p.idleTimeout/sweeps {
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

// hangUp closes connections. Over TLS that is a write, so the caller must not hold the lock.
func hangUp(conns []*conn) {
	for _, c := range conns {
		c.hangUp()
	}
}

// usable reports whether a call may use an idle connection.
func (c *conn) usable(now time.Time) bool {
	return clock.Age(c.idleSince, now) < c.maxIdle && c.isQuiet()
}
