package shared

import (
	"context"
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
)

// A replica is shut down while it takes its parts, at any moment of that. Another one has them at once, not only when a lease has run out.
func TestStoppedWhileItTakesOver(t *testing.T) {
	for after := time.Duration(0); after < time.Second; after += 50 * time.Millisecond {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.hard = context.Background()
				other := c.start()
				until(t, "all is delivered", func() bool { return other.terms() == c.parts })
				other.stop()
				r := c.startAt(&natstest.Wire{Server: c.server, Delay: 50 * time.Millisecond})
				until(t, "connected", func() bool { return r.Err() == nil })
				time.Sleep(after)
				r.stop()
				next := c.start()
				defer next.stop()
				began := time.Now()
				until(t, "another one delivers", func() bool { return next.terms() == c.parts })
				if took := time.Since(began); took > time.Second {
					t.Errorf("another one delivers after %v", took)
				}
			})
		})
	}
}

// The servers hang. A replica that is shut down waits for them no longer than for its deliveries.
func TestStopsThoughTheServersHang(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		hard, cut := context.WithCancel(context.Background())
		c.hard = hard
		r := c.start()
		until(t, "all is delivered", func() bool { return r.terms() == c.parts })
		c.receiver.Set(inboxtest.Status(500))
		for n := range 100 {
			r.send(t, fmt.Sprint("t", n), "A")
		}
		time.Sleep(10 * time.Second)
		r.wire.Stuck.Store(true)
		time.Sleep(500 * time.Millisecond) // some are being read to be tried again, and of some the outcome is to be written
		began := time.Now()
		time.AfterFunc(time.Second/4, cut) // the grace
		r.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it ends after %v", took)
		}
		r.wire.Stuck.Store(false)
	})
}
