package shared

import (
	"context"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/lease"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// A replica died when it had parked a webhook and not yet taken it out of its lane, and the next one when it had that
// sent again. It is delivered once, and not again behind what is newer.
func TestSentAgainWhileItsParkingIsUnfinished(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		idle := c.start()
		defer idle.stop()
		idle.send(t, "t", "A")
		lane := webhookgate.Lane{Platform: "p", Tenant: "t"}
		place := message.PlaceOf(lane)
		last, err := idle.readEnd(context.Background(), place)
		if err != nil || last.ID == 0 {
			t.Fatal(last, err)
		}
		// What they have left.
		dead := newTerm(idle.Store, new(lease.Lease), record.Load{})
		r := &record.Record{ID: last.ID, Webhook: last.Slim(), Status: record.Status{State: record.Waiting}}
		r.SendAgain()
		whole, err := dead.content(context.Background(), r, nil, spot{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := idle.servers.Publish(context.Background(), message.New(idle.subjects.State(place, r.ID), r, whole)); err != nil {
			t.Fatal(err)
		}
		c.change = func(*Config, *courier.Config) {}
		one := c.start()
		defer one.stop()
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		one.send(t, "t", "B")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		time.Sleep(time.Second)
		one.stop()
		two := c.start()
		defer two.stop()
		time.Sleep(time.Minute)
		c.receiver.Want(t, "t:A", "t:B")
	})
}
