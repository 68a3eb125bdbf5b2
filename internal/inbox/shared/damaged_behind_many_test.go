package shared

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// The note at a lane's end is damaged, and much waits before it. What comes is taken in all the same.
func TestDamagedNoteBehindMany(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		c.receiver.Set(inboxtest.Refusing)
		r := c.start()
		defer r.stop()
		for n := range 400 {
			r.send(t, "acme", fmt.Sprint(n))
		}
		acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
		m := nats.NewMsg(r.subjects.Lane(message.PlaceOf(acme)))
		m.Header.Set(message.HeadHeader, "damaged")
		if _, err := r.servers.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		far := c.startAt(&natstest.Wire{Server: c.server, Delay: 10 * time.Millisecond})
		defer far.stop()
		far.send(t, "acme", "next")
	})
}
