package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/lease"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// A process was stopped when it was asked to erase a tenant, and goes on after its part was taken over and the tenant was
// erased by others. What came in since is not erased.
func TestFormerHolderErasesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 1
		c.receiver.Set(inboxtest.Refusing)
		now := c.start()
		defer now.stop()
		until(t, "it delivers", func() bool { return now.terms() == now.subjects.Parts })
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		former := c.start()
		defer former.stop()
		now.send(t, "acme", "A")
		time.Sleep(time.Second)
		if _, err := now.Erase("p", "acme"); err != nil {
			t.Fatal(err)
		}
		now.send(t, "acme", "B")
		time.Sleep(time.Second)
		// The term of who was stopped, as it is at that moment: nothing of it has run since.
		last, err := former.readEnd(t.Context(), message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: "acme"}))
		if err != nil {
			t.Fatal(err)
		}
		stopped := newTerm(former.Store, new(lease.Lease), record.Load{}) // a lease that has run out
		stopped.gather, stopped.next = nil, last.Seq+1
		if err := stopped.do(t.Context(), &errand{Act: "erase", Lane: webhookgate.Lane{Platform: "p", Tenant: "acme"}}); err == nil {
			t.Error("it says that it has erased the tenant")
		}
		// The same if it was stopped a moment later: when it had looked at its lease.
		if err := stopped.eraseLane(t.Context(), last.Lane(), last, nil); err == nil {
			t.Error("it says that it has erased the tenant")
		}
		c.receiver.Set(nil)
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:B")
	})
}
