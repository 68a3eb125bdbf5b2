package shared

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// An erasure fails halfway. What is delivered after that is in the history: else nobody could tell what became of it.
func TestDeliveredAfterAFailedErasureIsListed(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		c.receiver.Set(inboxtest.Refusing)
		r.send(t, "acme", "A")
		time.Sleep(time.Second)
		near, err := nats.Connect("", nats.InProcessServer(c.server))
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		lane, err := near.SubscribeSync(r.subjects.Lane(message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: "acme"})))
		if err == nil {
			err = near.Flush()
		}
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := r.Erase("p", "acme")
			failed <- err
		}()
		if _, err := lane.NextMsg(time.Minute); err != nil {
			t.Fatal(err)
		}
		r.wire.Sever() // the first note is written, and the second one, in the history, is not
		if err := <-failed; err == nil {
			t.Fatal("it says that it has erased the tenant")
		}
		r.wire.Mend()
		c.receiver.Set(nil)
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		if all, err := r.List(record.Filter{}); err != nil || len(all) != 1 || all[0].State != record.Delivered {
			t.Errorf("listed are %v, %v", all, err)
		}
	})
}
