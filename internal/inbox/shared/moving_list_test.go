package shared

import (
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
)

// A webhook is listed and shown at any time, also while it goes from one place to another.
func TestListedWhileItMoves(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		owner := c.start()
		defer owner.stop()
		until(t, "it delivers", func() bool { return owner.terms() == owner.subjects.Parts })
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		far := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer far.stop()
		time.Sleep(time.Second)
		for after := time.Duration(0); after < 30*farAway; after += farAway {
			tenant := fmt.Sprint("t", after)
			c.receiver.Slow(after + time.Millisecond)
			owner.send(t, tenant, "A")
			if entries, err := far.List(record.Filter{Tenant: tenant}); err != nil || len(entries) != 1 {
				t.Errorf("delivered after %v: %d are listed, %v", after, len(entries), err)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// A parked webhook that somebody has sent again at this moment is still there for others who look.
func TestFoundWhileItMoves(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		owner := c.start()
		defer owner.stop()
		until(t, "it delivers", func() bool { return owner.terms() == owner.subjects.Parts })
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		far := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer far.stop()
		time.Sleep(time.Second)
		for after := time.Duration(0); after < 10*farAway; after += farAway / 2 {
			tenant := fmt.Sprint("t", after)
			c.receiver.Set(inboxtest.Status(422))
			owner.send(t, tenant, "A")
			time.Sleep(5 * time.Second)
			id := owner.only(t, tenant, record.Parked).ID
			c.receiver.Set(inboxtest.Status(500))
			time.AfterFunc(after+time.Millisecond, func() {
				if err := owner.Redeliver(id, false); err != nil {
					t.Error(err)
				}
			})
			if _, err := far.Show(id); err != nil {
				t.Errorf("sent again after %v: %v", after, err)
			}
			time.Sleep(10 * time.Second)
		}
	})
}
