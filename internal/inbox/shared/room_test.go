package shared

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
)

// What becomes of webhooks finds room in a full inbox, however large they are.
func TestOutcomesFindRoom(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) { cfg.MaxBytes = 1 << 20 }
		c.receiver.Set(inboxtest.Refusing)
		r := c.start()
		defer r.stop()
		noise := rand.NewChaCha8([32]byte{})
		taken := 0
		for n := range 20 {
			body := make([]byte, 220<<10)
			noise.Read(body)
			if _, err := r.Append(inboxtest.Webhook(fmt.Sprint("t", n), string(body)), false); err == nil {
				taken++
			}
		}
		if taken == 0 {
			t.Fatal("nothing was taken in")
		}
		c.receiver.Set(nil)
		until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == taken })
		time.Sleep(10 * time.Second)
		if left := len(r.waiting(t)); left > 0 {
			t.Errorf("%d of %d wait, and the receiver has them", left, taken)
		}
	})
}
