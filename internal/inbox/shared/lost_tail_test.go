package shared

import (
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/natstest"
	"usher/webhookgate"
)

// The servers lose the last few messages, and have as many again before a replica is back: it does not notice that by
// their number. It must still learn what came in since.
func TestFollowsAfterALossThatIsMadeUpFor(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		var mu sync.Mutex
		known := make(map[string]uint64)
		server := startLosing(t)
		one := c.startAt(&natstest.Wire{Server: server.Server})
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.OnSnapshot = func(l webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
				mu.Lock()
				defer mu.Unlock()
				known[l.Tenant] = max(known[l.Tenant], id)
			}
			cfg.OnLost = func() {
				mu.Lock()
				defer mu.Unlock()
				clear(known)
			}
		}
		two := c.startAt(&natstest.Wire{Server: server.Server})
		one.send(t, "acme", "A")
		until(t, "delivered, and noted", func() bool { return len(c.receiver.Accepted()) == 1 && len(one.waiting(t)) == 0 })
		server.save(one, two)
		time.Sleep(10 * time.Second)
		one.send(t, "other", "lost")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		time.Sleep(time.Second)
		server.lose(one, two)
		server.connect(one)
		one.send(t, "acme", "B")
		time.Sleep(20 * time.Second) // so many leases that the stream is as long as before
		server.connect(two)
		time.Sleep(time.Minute)
		_, id, err := two.Snapshot(t.Context(), webhookgate.Lane{Platform: "p", Tenant: "acme"})
		stale, ready := two.Following()
		mu.Lock()
		defer mu.Unlock()
		if err != nil || known["acme"] != id || stale != 0 || !ready {
			t.Errorf("known is %d, and the last of acme is %d, %v; stale for %v, ready: %v", known["acme"], id, err, stale, ready)
		}
		one.stop()
		two.stop()
		server.end()
	})
}
