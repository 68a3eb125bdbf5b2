package shared

import (
	"errors"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
)

// Somebody discards a webhook while nobody delivers it. A replica takes the part over and does it, but its answer gets lost.
// Whoever asked is not told that nobody did it.
func TestDoesNotDenyWhatWasDone(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		c.receiver.Set(inboxtest.Refusing)
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		asker := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer asker.stop()
		asker.send(t, "acme", "A")
		id := asker.only(t, "acme", "").ID
		answer := make(chan error, 1)
		go func() { answer <- asker.Discard(id) }()
		time.Sleep(time.Second)
		c.change = func(*Config, *courier.Config) {}
		holder := c.start()
		defer holder.stop()
		until(t, "discarded", func() bool {
			f, err := holder.find(t.Context(), id) // not by a list: that takes seconds if something goes meanwhile
			return err == nil && f.Status.State == record.Discarded
		})
		asker.wire.Sever()
		if err := <-answer; errors.Is(err, record.ErrNobody) { // nil: it came before that
			t.Errorf("it was discarded, and the answer is: %v", err)
		}
		asker.wire.Mend()
	})
}

// A webhook is gone when its replica looks for it. Another replica that has asked says so, too.
func TestSaysThatItIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other := c.ownerAndOther(t)
		defer owner.stop()
		defer other.stop()
		other.send(t, "acme", "A")
		time.Sleep(5 * time.Second)
		e := other.toRedeliver(t, "acme", record.Delivered)
		e.ID = 1 << 40
		if err := other.ask(t.Context(), 0, e); !errors.Is(err, record.ErrNotFound) {
			t.Error(err)
		}
	})
}
