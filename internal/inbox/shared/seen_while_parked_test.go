package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
)

// A webhook is parked at the very moment when somebody looks at it. It is there.
func TestShownWhileItIsParked(t *testing.T) {
	for _, early := range []time.Duration{0, farAway, 2 * farAway, 3 * farAway, 4 * farAway, 5 * farAway} {
		t.Run(early.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				one := c.start()
				defer one.stop()
				until(t, "it delivers", func() bool { return one.terms() == one.subjects.Parts })
				two := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
				defer two.stop()
				time.Sleep(20 * time.Second)
				c.receiver.Set(inboxtest.Status(422))
				c.receiver.Slow(2 * time.Second)
				began := time.Now()
				one.send(t, "acme", "A")
				id := one.only(t, "acme", "").ID
				time.Sleep(time.Until(began.Add(2*time.Second - early - farAway/2)))
				if _, err := two.Show(id); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
			})
		})
	}
}
