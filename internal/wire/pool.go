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

// put adds a connection that has just been used, or closes it if there is no room.
func (p *pool) put(c *conn) {
	p.mu.Lock()
	room := !p.closed && len(p.idle) < p.maxIdle
	if room {
		p.idle = append(p.idle, c)
		p.sweepLater()
	}
	p.mu.Unlock()
	if !room {
		c.hangUp()
	}
}

func (p *pool) sweepLater() {
	if !p.sweepDue && len(p.idle) > 0 {
		p.sweepDue = true
		time.AfterFunc(p.idleTimeout/10, p.sweep)
	}
}

// sweep closes the connections that were idle for too long. It does not look for those that the other side
// has closed: the next call does, and none is kept for longer than idleTimeout.
func (p *pool) sweep() {
	now := time.Now()
	var old []*conn
	p.mu.Lock()
	p.idle = slices.DeleteFunc(p.idle, func(c *conn) bool {
		expired := c.expired(now)
		if expired {
			old = append(old, c)
		}
		return expired
	})
	p.sweepDue = false
	p.sweepLater()
	p.mu.Unlock()
	hangUp(old)
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
	return !c.expired(now) && c.isQuiet()
}

func (c *conn) expired(now time.Time) bool { return clock.Age(c.idleSince, now) >= c.maxIdle }
