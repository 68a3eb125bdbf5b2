package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/webhookgate"
)

// Who has lost the connection says so: what others take in meanwhile is not known here.
func TestFollowingSaysWhenItIsCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.OnSnapshot = func(webhookgate.Lane, uint64, *webhookgate.Webhook) {}
		}
		r := c.start()
		defer r.stop()
		fresh := func() bool {
			stale, ready := r.Following()
			return ready && stale == 0
		}
		until(t, "all is read", fresh)
		time.Sleep(5 * time.Second)
		r.wire.Sever()
		time.Sleep(time.Second)
		if fresh() {
			t.Error("it is cut off, and says that it hears all")
		}
		time.Sleep(20 * time.Second)
		if stale, ready := r.Following(); !ready || stale < 20*time.Second {
			t.Errorf("after 21 s: stale for %v, ready %v", stale, ready)
		}
		r.wire.Mend()
		until(t, "it hears again", fresh)
	})
}
