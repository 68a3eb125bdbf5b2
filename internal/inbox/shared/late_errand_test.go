package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
)

// Somebody erases a tenant while nobody delivers its part. A replica takes the part over, but a delivery of the tenant is
// under way, and the answer says that nothing was erased. From then on nothing is: not what comes in later, either.
func TestErasesNothingOnceItSaidSo(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		asker := c.start()
		defer asker.stop()
		asker.send(t, "acme", "A")
		failed := make(chan error, 1)
		go func() {
			_, err := asker.Erase("p", "acme")
			failed <- err
		}()
		time.Sleep(10 * time.Second)
		c.receiver.Slow(15 * time.Second)
		c.change = func(*Config, *courier.Config) {}
		holder := c.start()
		defer holder.stop()
		if err := <-failed; err == nil {
			t.Fatal("it says that it has erased the tenant")
		}
		c.receiver.Slow(0)
		asker.send(t, "acme", "B")
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A", "acme:B")
	})
}
