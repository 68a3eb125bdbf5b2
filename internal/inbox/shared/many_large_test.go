package shared

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
)

// Many large webhooks come at once, more than the wire to the servers carries in time. Some get 503. The wire is still free for all else:
// no lease runs out, small webhooks are taken in, and what was taken in is delivered.
func TestManyLargeWebhooks(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		lost := 0
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.LeaseChanged = func(change string) {
				if change == "lost" {
					lost++
				}
			}
		}
		r := c.startAt(&natstest.Wire{Server: c.server, Rate: 6 << 20, Delay: time.Millisecond})
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		random := rand.NewChaCha8([32]byte{})
		body := make([]byte, 900<<10) // it does not get smaller
		random.Read(body)
		end := time.Now().Add(6 * time.Second)
		var sending sync.WaitGroup
		var mu sync.Mutex
		taken := 0
		for n := range 16 {
			sending.Go(func() {
				for i := 0; time.Now().Before(end); i++ {
					if _, err := r.Append(inboxtest.Webhook(fmt.Sprint("large", n), fmt.Sprint(i)+string(body)), false); err != nil {
						time.Sleep(time.Second)
						continue
					}
					mu.Lock()
					taken++
					mu.Unlock()
				}
			})
		}
		for n := 0; time.Now().Before(end); n++ {
			r.send(t, "small", fmt.Sprint(n))
			time.Sleep(time.Second)
		}
		sending.Wait()
		if taken < 8 {
			t.Errorf("%d large webhooks were taken in, in 6 seconds", taken)
		}
		if lost > 0 {
			t.Errorf("%d leases were lost", lost)
		}
		until(t, "all is delivered", func() bool { return len(r.waiting(t)) == 0 })
		r.stop()
	})
}
