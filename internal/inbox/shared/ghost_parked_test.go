package shared

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

// A parked webhook is sent again and delivered. Whenever its holder loses the connection for a moment, it is not
// still listed as parked in the end.
func TestDeliveredIsNotStillParked(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other := c.ownerAndOther(t)
		defer owner.stop()
		defer other.stop()
		for cut := time.Duration(0); cut < 8*farAway; cut += step(farAway / 4) {
			tenant := fmt.Sprint("t", cut)
			c.receiver.Set(inboxtest.Status(422))
			other.send(t, tenant, "A")
			time.Sleep(time.Second)
			id := other.only(t, tenant, record.Parked).ID
			c.receiver.Set(nil)
			if err := other.Redeliver(id, false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(cut)
			owner.wire.Sever()
			owner.wire.Mend()
			time.Sleep(20 * time.Second)
			entries, err := other.List(record.Filter{Tenant: tenant})
			if err != nil || len(entries) != 1 || entries[0].State != record.Delivered {
				t.Errorf("cut after %v: %d entries, the first %s, %v; accepted: %v", cut, len(entries), entries[0].State, err,
					slices.Contains(c.receiver.Accepted(), tenant+":A"))
			}
		}
	})
}
