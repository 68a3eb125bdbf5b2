package shared

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// Whenever the connection is lost: who is told that all of a subject is deleted can rely on it. The client
// says nothing of messages that got lost on their way.
func TestWipesAllOrSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		near := c.start()
		defer near.stop()
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		far := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer far.stop()
		time.Sleep(10 * time.Second)
		for cut := time.Duration(0); cut < 12*farAway; cut += farAway / 2 {
			tenant := fmt.Sprint("t", cut)
			for n := range 3 {
				near.send(t, tenant, fmt.Sprint(n))
			}
			time.Sleep(time.Second)
			var err error
			var wiping sync.WaitGroup
			wiping.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), eraseTimeout)
				defer cancel()
				err = far.wipe(ctx, message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: tenant}), 1<<62, 1<<62)
			})
			time.Sleep(cut + time.Millisecond)
			far.wire.Sever()
			far.wire.Mend()
			wiping.Wait()
			until(t, "connected again", func() bool { return far.Err() == nil })
			entries, listing := near.List(record.Filter{Tenant: tenant, State: record.Delivered})
			if listing != nil {
				t.Fatal(listing)
			}
			if err == nil && len(entries) > 0 {
				t.Errorf("cut after %v: %d of 3 are still there, and nobody says so", cut, len(entries))
			}
		}
	})
}
