package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
)

// The replica that delivers is cut off from the servers, and may go on for some seconds. A pause that says it is done
// has waited for that.
func TestPauseWaitsForWhoIsCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(_ *Config, cfg *courier.Config) { cfg.Receivers[0].Concurrency = 1 }
		owner := c.startAt(&natstest.Wire{Server: c.server})
		defer owner.stop()
		until(t, "it delivers", func() bool { return owner.terms() == owner.subjects.Parts })
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		other := c.start()
		defer other.stop()
		time.Sleep(2 * time.Second)
		c.receiver.Slow(500 * time.Millisecond)
		for _, tenant := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			other.send(t, tenant, "A")
		}
		time.Sleep(100 * time.Millisecond)
		owner.wire.Sever()
		err := other.Pause(record.Pause{})
		paused := time.Now()
		time.Sleep(time.Minute)
		for _, at := range c.receiver.Tried() {
			if at.After(paused) && err == nil {
				t.Errorf("a delivery began %v after they were paused", at.Sub(paused))
			}
		}
	})
}
