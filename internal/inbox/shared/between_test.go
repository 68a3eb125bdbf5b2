package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/record"
)

// A was delivered, B and C wait. C comes right after B, which was not taken, not after A.
func TestShowsWhatCameRightBefore(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		r.send(t, "acme", "A")
		until(t, "delivered, and noted", func() bool { return r.states(t)[record.Delivered] == 1 && len(r.waiting(t)) == 0 })
		if err := r.Pause(record.Pause{}); err != nil {
			t.Fatal(err)
		}
		r.send(t, "acme", "B")
		r.send(t, "acme", "C")
		time.Sleep(time.Second)
		all, err := r.List(record.Filter{})
		if err != nil || len(all) != 3 {
			t.Fatal(all, err)
		}
		item, err := r.Show(all[0].ID)
		if err != nil || item.Before != all[1].ID || item.Previous == nil || item.Previous.ID != all[2].ID {
			t.Errorf("before %d came %d, want %d, %v", all[0].ID, item.Before, all[1].ID, err)
		}
	})
}
