package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
)

// Somebody discards or erases while the part is handed over: who was asked no longer has it when it is about to do so. Nothing is being
// delivered, so it is done by who has the part next, and not refused.
func TestActedUponAtTheEndOfAHandover(t *testing.T) {
	for name, act := range map[string]func(*replica, record.Entry) error{
		"discard": func(r *replica, e record.Entry) error { return r.Discard(e.ID) },
		"erase":   func(r *replica, e record.Entry) error { _, err := r.Erase(e.Platform, e.Tenant); return err },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				owner, other, tenant := c.elsewhere()
				defer owner.stop()
				defer other.stop()
				c.receiver.Set(inboxtest.Status(422))
				owner.send(t, tenant, "A")
				until(t, "parked", func() bool { return owner.courier.Stats().Parked == 1 })
				e := other.only(t, tenant, record.Parked)
				place := message.PlaceOf(inboxtest.Webhook(tenant, "").Lane)
				term := owner.term(owner.subjects.PartOf(place))
				leave, err := term.writing.enter(t.Context(), place)
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() { done <- act(other, e) }()
				time.Sleep(100 * time.Millisecond) // it was asked, and waits for its turn
				term.Leave()
				<-term.Ended()
				leave()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
