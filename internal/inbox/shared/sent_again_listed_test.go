package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/record"
)

// A webhook that was delivered is sent again, and waits: so it is not among the delivered ones. Nor does it depend on the
// clock of the replica that delivered it.
func TestSentAgainIsListedAsWaiting(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"same clocks": 0, "a clock ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				r := c.start()
				defer r.stop()
				until(t, "it delivers", func() bool { return r.terms() == r.parts })
				r.send(t, "acme", "A")
				until(t, "delivered, and noted", func() bool { return r.states(t)[record.Delivered] == 1 && len(r.waiting(t)) == 0 })
				id := r.only(t, "acme", "").ID
				f, err := r.find(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				f.Status.Changed = f.Status.Changed.Add(ahead)
				if err := r.finish(t.Context(), &f.Record, f.content, placeOf(f.Webhook.Lane)); err != nil {
					t.Fatal(err)
				}
				if err := r.Pause(record.Pause{}); err != nil {
					t.Fatal(err)
				}
				if err := r.Redeliver(id, false); err != nil {
					t.Fatal(err)
				}
				for _, state := range []record.State{"", record.Waiting} {
					if all, err := r.List(record.Filter{State: state}); err != nil || len(all) != 1 || all[0].State != record.Waiting {
						t.Errorf("with the state %q: %v, %v", state, all, err)
					}
				}
				if all, err := r.List(record.Filter{State: record.Delivered}); err != nil || len(all) != 0 {
					t.Errorf("delivered are %v, %v", all, err)
				}
				if _, err := r.Resume(record.Pause{}); err != nil {
					t.Fatal(err)
				}
				until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 && r.states(t)[record.Delivered] == 1 })
			})
		})
	}
}
