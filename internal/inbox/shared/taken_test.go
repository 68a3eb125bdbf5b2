package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

// A webhook is compared with what the receiver took last, which may not be the one right before it; whichever replica
// is asked.
func TestComparedWithWhatWasTaken(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		owner.send(t, tenant, "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		c.receiver.Set(inboxtest.Status(422))
		owner.send(t, tenant, "B")
		until(t, "parked", func() bool { return owner.courier.Stats().Parked == 1 })
		c.receiver.Set(inboxtest.Status(500))
		owner.send(t, tenant, "C")
		owner.send(t, tenant, "D")
		time.Sleep(time.Second)
		entries, err := other.List(record.Filter{Tenant: tenant}) // the newest first
		if err != nil || len(entries) != 4 {
			t.Fatalf("%v, %v", entries, err)
		}
		for i, e := range entries {
			item, err := other.Show(e.ID)
			switch {
			case err != nil:
				t.Error(err)
			case i == 3 && (item.Previous != nil || item.Before != 0):
				t.Errorf("the first: %+v", item)
			case i < 3 && (item.Previous == nil || item.Previous.ID != entries[3].ID || string(item.Previous.Body) != "A"):
				t.Errorf("%d is compared with %+v", e.ID, item.Previous)
			case i == 2 && item.Before != item.Previous.ID, i < 2 && item.Before == item.Previous.ID:
				t.Errorf("%d comes after %d", e.ID, item.Before)
			}
		}
	})
}
