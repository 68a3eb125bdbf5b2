package shared

import (
	"errors"
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// A webhook that waits can be tried now, or nobody can do that for the moment. That there is no such webhook is wrong, also
// while its part is being taken over, which takes most of a minute if much waits.
func TestRetryWhileTakingOver(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		c.receiver.Set(inboxtest.Status(500))
		one := c.start()
		one.send(t, "acme", "A")
		time.Sleep(5 * time.Second)
		id := one.waiting(t)[0].ID
		one.stop()
		two := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer two.stop()
		until(t, "it takes the part over", func() bool { return two.term(0) != nil })
		if two.term(0).hasBegun() {
			t.Fatal("it has done so already")
		}
		// As Redeliver does, which has found that it waits.
		err := two.ask(t.Context(), 0, &errand{Act: "redeliver", ID: id, Lane: webhookgate.Lane{Platform: "p", Tenant: "acme"}})
		if err != nil && !errors.Is(err, record.ErrNobody) {
			t.Errorf("webhook %d waits, and is to be tried now: %v", id, err)
		}
	})
}
