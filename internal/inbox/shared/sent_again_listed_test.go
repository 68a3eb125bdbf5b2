package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
)

// A webhook that was delivered is sent again, and waits: so it is not among the delivered ones. Nor does it depend on the
// clock of the replica that delivered it.
func TestSentAgainIsListedAsWaiting(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"same clocks": 0, "a clock ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				r := c.start()
				defer r.stop()
				until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
				r.send(t, "acme", "A")
				until(t, "delivered, and noted", func() bool { return r.states(t)[record.Delivered] == 1 && len(r.waiting(t)) == 0 })
				id := r.only(t, "acme", "").ID
				f, err := r.find(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				f.Status.Changed = f.Status.Changed.Add(ahead)
				if err := r.finish(t.Context(), &f.Record, f.Content, message.PlaceOf(f.Webhook.Lane)); err != nil {
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

// Who discarded a webhook died halfway: it is in the history, and still parked. So it is listed, as it is shown and counted.
func TestHalfDiscardedIsListedAsParked(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		c.receiver.Set(inboxtest.Status(422))
		r.send(t, "acme", "A")
		until(t, "parked", func() bool { return r.states(t)[record.Parked] == 1 })
		f, err := r.find(t.Context(), r.only(t, "acme", "").ID)
		if err != nil {
			t.Fatal(err)
		}
		f.Enter(record.Discarded, "discarded by hand")
		if err := r.finish(t.Context(), &f.Record, f.Content, message.PlaceOf(f.Webhook.Lane)); err != nil {
			t.Fatal(err)
		}
		item, err := r.Show(f.ID)
		if all := r.states(t); err != nil || item.State != record.Parked || all[record.Parked] != 1 || all[record.Discarded] != 0 {
			t.Errorf("it is shown as %s, and listed are %v, %v", item.State, all, err)
		}
	})
}
