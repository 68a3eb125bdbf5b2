package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
)

// A tenant is erased, and while that is being written something new of it comes that nobody takes. It is not erased with the
// rest.
func TestKeptWhileItsTenantIsErased(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		far := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer far.stop()
		until(t, "it delivers", func() bool { return far.terms() == 1 })
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		near := c.start()
		defer near.stop()
		old := inboxtest.Webhook("acme", "old")
		if _, err := near.Append(old, true); err != nil {
			t.Fatal(err)
		}
		erased := make(chan error, 1)
		go func() {
			_, err := far.Erase("p", "acme")
			erased <- err
		}()
		place := message.PlaceOf(old.Lane)
		until(t, "noted in the lane", func() bool {
			e, err := near.readEnd(t.Context(), place)
			return err == nil && e.Kind == message.Erased
		})
		if _, err := near.Append(inboxtest.Webhook("acme", "new"), true); err != nil {
			t.Fatal(err)
		}
		if err := <-erased; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		all, err := near.List(record.Filter{})
		if err != nil || len(all) != 1 {
			t.Fatalf("listed are %v, %v", all, err)
		}
		if item, err := near.Show(all[0].ID); err != nil || string(item.Body) != "new" {
			t.Errorf("shown is %v, %v", item, err)
		}
	})
}
