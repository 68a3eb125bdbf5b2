package shared

import (
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/webhookgate"
)

// A tenant's code is long, and full of letters that take more than one byte in JSON, and so is what the receiver says. What
// becomes of its webhooks can be written down.
func TestOddNamesFitTheHeader(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(_ *Config, cfg *courier.Config) {
			cfg.Pause = func(time.Duration) time.Duration { return time.Second }
		}
		c.receiver.Set(func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
			if n < 3 {
				return webhookgate.Attempt{Status: 500, Excerpt: strings.Repeat("<", 1<<10)}
			}
			return webhookgate.Attempt{Status: 422, Excerpt: strings.Repeat("<", 1<<10)}
		})
		r := c.start()
		defer r.stop()
		tenant := strings.Repeat("<", 8000)
		r.send(t, tenant, "A")
		time.Sleep(10 * time.Second)
		c.receiver.Set(nil)
		r.send(t, tenant, "B")
		time.Sleep(time.Minute)
		if got := len(c.receiver.Accepted()); got != 1 {
			t.Errorf("%d were accepted, want the second one, as the first is parked", got)
		}
		if waiting := r.waiting(t); len(waiting) != 0 {
			t.Errorf("%d wait", len(waiting))
		}
	})
}
