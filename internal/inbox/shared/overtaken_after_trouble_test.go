package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// A server that was just elected says that it has nothing of a lane, so that a delivery can't be written and the
// part is read again. What comes after that delivery does not go out before it is made again: it would be undone by it.
func TestNothingOvertakesWhatIsReadAgain(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Refusing)
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.LeaseChanged = func(change string) {
				if change == "given_back" {
					time.Sleep(time.Second) // this replica is busy, too
				}
			}
		}
		r := c.startAt(&natstest.Wire{Server: c.server, Delay: time.Millisecond})
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
		r.send(t, "acme", "A")
		event := inboxtest.Webhook("acme", "B")
		event.Type, event.Snapshot = "Other", false
		r.keep(t, event)
		time.Sleep(5 * time.Second)
		in := r.subjects.Lane(message.PlaceOf(acme))
		unready(t, c, func(_ uint64, lastOn string) bool { return lastOn == in })
		term := r.term(r.subjects.PartOf(message.PlaceOf(acme)))
		term.mu.Lock()
		term.lanes[acme].end.Seq-- // as if its end were another by now
		term.mu.Unlock()
		c.receiver.Set(nil)
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A", "acme:A", "acme:B")
	})
}
