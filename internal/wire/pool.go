package wire

import (
	"sync"
	"time"
)

// place is where a connection leads.
type place struct{ scheme, host string }

// pool has the idle connections. It returns the one that was used last, so that surplus ones grow
// old and are closed.
type pool struct {
	most  int
	limit time.Duration

	mu      sync.Mutex
	idle    map[place][]*conn // oldest first; guarded by mu
	count   int               // of all connections; guarded by mu
	sweeper *time.Timer       // nil: nothing to sweep; guarded by mu
	closed  bool              // connections that come back are closed; guarded by mu
}

// take returns the idle connection that was used last, or nil. The caller must check it before it
// is used.
func (p *pool) take(where place) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
	list := p.idle[where]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[where] = list[:len(list)-1]
	p.count--
	return c
}

// put takes back a connection whose answer was read to its end.
func (p *pool) put(c *conn) {
	c.idleSince = time.Now()
	if !p.add(c) {
		c.hangUp()
	}
}

func (p *pool) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.count >= p.most {
		return false
	}
	if p.idle == nil {
		p.idle = make(map[place][]*conn)
	}
	p.idle[c.where] = append(p.idle[c.where], c)
	p.count++
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(p.limit/sweeps, p.sweep)
	}
	return true
}

// sweeps is how often all idle connections are checked within IdleTimeout. Otherwise those that
// the other side has closed would keep their descriptors.
const sweeps = 10

func (p *pool) sweep() {
	now := time.Now()
	p.remove(func(c *conn) bool { return c.age(now) >= p.limit || c.socket.instant() && !c.quiet() }, func() {
		if p.sweeper != nil && p.count > 0 {
			p.sweeper.Reset(p.limit / sweeps)
		} else {
			p.sweeper = nil
		}
	})
}

func (p *pool) empty() {
	p.remove(func(*conn) bool { return true }, func() {
		p.closed = true
		if p.sweeper != nil {
			p.sweeper.Stop()
			p.sweeper = nil
		}
	})
}

// remove takes out the connections for which goes returns true, calls then under the same lock,
// and closes them. It does not hold the lock while it closes them: over TLS that is a write.
func (p *pool) remove(goes func(*conn) bool, then func()) {
	var gone []*conn
	p.mu.Lock()
	for where, list := range p.idle {
		var stay []*conn
		for _, c := range list {
			if goes(c) {
				gone = append(gone, c)
			} else {
				stay = append(stay, c)
			}
		}
		if p.idle[where] = stay; len(stay) == 0 {
			delete(p.idle, where)
		}
	}
	p.count -= len(gone)
	then()
	p.mu.Unlock()
	for _, c := range gone {
		c.hangUp()
	}
}

// age returns how long the connection has been idle, by the wall clock or the monotonic clock: the
// latter stands still while a machine sleeps.
func (c *conn) age(now time.Time) time.Duration {
	return max(now.Sub(c.idleSince), now.Round(0).Sub(c.idleSince.Round(0)))
}
