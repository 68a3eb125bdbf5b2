package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

// What is sent again takes its room, as it did while it was parked.
func TestSentAgainTakesRoom(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		c.receiver.Set(inboxtest.Status(422))
		r.send(t, "acme", noise(100<<10))
		until(t, "parked", func() bool { return r.courier.Stats().Parked == 1 })
		time.Sleep(5 * time.Second)
		c.receiver.Set(inboxtest.Refusing)
		parked, _ := r.leases.Load()
		if err := r.Redeliver(r.only(t, "acme", record.Parked).ID, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if waits, _ := r.leases.Load(); waits.Bytes < parked.Bytes || waits.Waiting < parked.Bytes {
			t.Errorf("parked it took %d bytes, and sent again it takes %d, %d of them of what waits", parked.Bytes, waits.Bytes, waits.Waiting)
		}
	})
}
