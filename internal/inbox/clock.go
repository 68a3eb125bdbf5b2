package inbox

import (
	"sync"
	"time"

	"usher/internal/clock"
)

// maxJump is by how much the clocks of replicas and database may differ, or jump, without anything following from it.
const maxJump = time.Second

// clockOffset compares the database's clock with our own. When a database fails over to another machine, its time may
// jump from one transaction to the next.
type clockOffset struct {
	mu          sync.Mutex
	start       time.Time     // our time counts from here, by the monotonic clock, which nobody sets
	known       bool          // the database's clock was read at least once
	offset      time.Duration // the database's time less ours, at the best reading
	uncertainty time.Duration // by how much offset may be too small: the reading took so long
	unsureSince time.Time     // when the offset has jumped, or was first read
}

// observe notes a reading of the database's clock that was asked for at a moment of ours. It says whether the clock has
// jumped since the last reading.
func (c *clockOffset) observe(now int64, asked time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	offset := time.Duration(now)*time.Microsecond - time.Since(c.start)
	uncertainty := time.Since(asked)
	jumped := c.known && (offset > c.offset+c.uncertainty+maxJump || c.offset > offset+uncertainty+maxJump)
	if jumped || !c.known { // the clock may have jumped right before we first read it
		c.unsureSince = time.Now()
	}
	// A reading that only took longer says nothing new. So the offset does not waver, and two moments of ours stay in
	// their order.
	contradicts := offset > c.offset+c.uncertainty || c.offset > offset+uncertainty
	if !c.known || contradicts || uncertainty < c.uncertainty {
		c.offset, c.uncertainty, c.known = offset, uncertainty, true
	}
	return jumped
}

// mayTakeOver says whether a lane can be taken from an owner whose lease has ended. For some time after the clock has
// jumped it cannot: the lease looks ended, but its holder, which goes by its own clock, may still be delivering.
func (c *clockOffset) mayTakeOver(leaseTime time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsureSince.IsZero() || time.Since(c.unsureSince) > leaseTime
}

// at converts a time of ours into one of the database's clock; zero: that one is not known yet.
func (c *clockOffset) at(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return 0
	}
	return int64((c.offset + t.Sub(c.start)) / time.Microsecond)
}

// dated is a time of ours by the database's clock, as far as that is known.
func (c *clockOffset) dated(t time.Time) time.Time {
	if at := c.at(t); at != 0 && !t.IsZero() {
		return clock.Moment(at)
	}
	return t
}
