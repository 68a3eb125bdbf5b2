package shared

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// The note at a lane's end is damaged. What the tenant may use is still known once its webhook was delivered.
func TestSnapshotOutlivesADamagedNote(t *testing.T) {
	for name, more := range map[string]bool{"nothing comes": false, "another event comes": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				r := c.start()
				defer r.stop()
				until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
				c.receiver.Set(inboxtest.Refusing)
				r.send(t, "acme", "A")
				acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
				m := nats.NewMsg(r.subjects.Lane(message.PlaceOf(acme)))
				m.Header.Set(message.HeadHeader, "damaged")
				if _, err := r.servers.Publish(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				if more {
					event := inboxtest.Webhook("acme", "event")
					event.Type, event.Snapshot = "Other", false
					r.keep(t, event)
				}
				c.receiver.Set(nil)
				time.Sleep(time.Minute)
				if w, _, err := r.Snapshot(t.Context(), acme); err != nil || string(w.Body) != "A" {
					t.Errorf("its last snapshot is %v, %v", w, err)
				}
				if n := len(r.waiting(t)); n > 0 || len(c.receiver.Accepted()) == 0 {
					t.Errorf("%d still wait, accepted are %v", n, c.receiver.Accepted())
				}
			})
		})
	}
}
