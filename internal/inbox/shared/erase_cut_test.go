package shared

import (
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
)

// The connection is lost for a second while a tenant is erased. Either all of it is gone, or somebody is told that it failed,
// and all of it is still delivered and listed.
func TestErasesAllOrNothing(t *testing.T) {
	for cut := farAway / 2; cut < 40*farAway; cut += step(farAway) {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.parts = 1
				r := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
				defer r.stop()
				until(t, "it delivers", func() bool { return r.terms() == 1 })
				if err := r.Pause(record.Pause{}); err != nil {
					t.Fatal(err)
				}
				r.send(t, "acme", "A")
				r.send(t, "acme", "B")
				time.Sleep(5 * time.Second)
				erased := make(chan error, 1)
				go func() {
					_, err := r.Erase("p", "acme")
					erased <- err
				}()
				time.Sleep(cut)
				r.wire.Sever()
				time.Sleep(time.Second)
				r.wire.Mend()
				failed := <-erased
				until(t, "deliveries go on", func() bool { _, err := r.Resume(record.Pause{}); return err == nil })
				time.Sleep(time.Minute)
				left := 0
				if failed != nil {
					left = 2
				}
				all, err := r.List(record.Filter{})
				if accepted := c.receiver.Accepted(); err != nil || len(all) != left || len(accepted) != left {
					t.Errorf("it says %v, then %v is delivered and %v listed, %v", failed, accepted, all, err)
				}
			})
		})
	}
}
