package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
)

// A webhook was refused, and its replica is about to write that it is parked, when somebody has it sent again. It is, and
// does not just stay parked.
func TestSentAgainWhileItIsParked(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		holder := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer holder.stop()
		until(t, "it delivers", func() bool { return holder.terms() == holder.subjects.Parts })
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		asker := c.start()
		defer asker.stop()
		c.receiver.Set(inboxtest.Status(422))
		asker.send(t, "acme", "A")
		id := asker.only(t, "acme", record.Waiting).ID
		for len(c.receiver.Tried()) == 0 {
			time.Sleep(time.Millisecond)
		}
		c.receiver.Set(nil)
		if err := asker.Redeliver(id, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A")
	})
}
