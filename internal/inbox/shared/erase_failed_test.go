package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
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
		began := time.Now()
		if _, err := r.List(record.Filter{Tenant: "acme"}); err != nil {
			t.Fatal(err)
		}
		listed := time.Since(began) // an erasure does that first
		failed := make(chan error, 1)
		go func() {
			_, err := r.Erase("p", "acme")
			failed <- err
		}()
		time.Sleep(listed + 2*2*farAway + 3*farAway/2) // the lane was read twice, and the first note is written
		r.wire.Sever()
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
