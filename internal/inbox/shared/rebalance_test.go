package shared

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
)

// Replicas come and go, all of them in order, while many tenants' webhooks come in. Each webhook is delivered once.
func TestRebalancingRepeatsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts, c.hard = 16, context.Background()
		c.receiver.Slow(30 * time.Millisecond)
		start := func(n int) *replica {
			return c.startAt(&natstest.Wire{Server: c.server, Delay: time.Duration(n) * 3 * time.Millisecond})
		}
		var mu sync.Mutex
		replicas := []*replica{start(0), start(1), start(2)}
		time.Sleep(5 * time.Second)
		const each = 60
		tenants := 60
		if testing.Short() {
			tenants = 20
		}
		var sending sync.WaitGroup
		for n := range tenants {
			sending.Go(func() {
				for word := range each {
					for {
						mu.Lock()
						r := replicas[(n+word)%len(replicas)]
						mu.Unlock()
						_, err := r.Append(inboxtest.Webhook(fmt.Sprint("t", n), fmt.Sprint(word)), false)
						if err == nil {
							break
						}
						time.Sleep(50 * time.Millisecond)
					}
					time.Sleep(time.Duration(500+n*3) * time.Millisecond)
				}
			})
		}
		for range 3 {
			time.Sleep(4 * time.Second)
			mu.Lock()
			leaving := replicas[1:]
			replicas = replicas[:1:1]
			mu.Unlock()
			for _, r := range leaving {
				time.Sleep(300 * time.Millisecond)
				r.stop()
			}
			time.Sleep(4 * time.Second)
			two, three := start(1), start(2)
			mu.Lock()
			replicas = append(replicas, two, three)
			mu.Unlock()
		}
		sending.Wait()
		time.Sleep(10 * time.Second)
		next, more := make(map[string]int), 0
		for _, got := range c.receiver.Accepted() {
			var n, word int
			if _, err := fmt.Sscanf(got, "t%d:%d", &n, &word); err != nil {
				t.Fatal(err)
			}
			tenant := fmt.Sprint("t", n)
			if word < next[tenant] {
				more++
			} else if word != next[tenant] {
				t.Errorf("%s came when %d was next", got, next[tenant])
			}
			next[tenant] = word + 1
		}
		for tenant, n := range next {
			if n != each {
				t.Errorf("%s ends with %d", tenant, n)
			}
		}
		if more > 0 || len(next) != tenants {
			t.Errorf("%d tenants, %d deliveries too many", len(next), more)
		}
		for _, r := range replicas {
			r.stop()
		}
	})
}
