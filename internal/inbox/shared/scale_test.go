package shared

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// Three replicas deliver more than twice as much as one where the receiver is what takes the
// time, and each tenant's webhooks in order. The time is the bubble's, not the machine's.
func TestDeliveriesScale(t *testing.T) {
	took := make(map[int]time.Duration)
	for _, replicas := range []int{1, 3} {
		bubble(t, func(t *testing.T, c *cluster) {
			c.parts = message.Parts
			c.change = func(_ *Config, cfg *courier.Config) { cfg.Receivers[0].Concurrency = 16 }
			c.receiver.Slow(100 * time.Millisecond)
			var all []*replica
			for range replicas {
				r := c.start()
				defer r.stop()
				all = append(all, r)
			}
			until(t, "each has its share", func() bool {
				sum, least := 0, message.Parts
				for _, r := range all {
					sum, least = sum+r.terms(), min(least, r.terms())
				}
				return sum == message.Parts && least == message.Parts/replicas
			})
			const tenants, each = 12 * message.Parts, 3
			names, inPart := make([]string, 0, tenants), make(map[int]int) // as many in each part: which replica has which is chance
			for n := 0; len(names) < tenants; n++ {
				name := fmt.Sprint("t", n)
				part := all[0].subjects.PartOf(message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: name}))
				if inPart[part]++; inPart[part] <= tenants/message.Parts {
					names = append(names, name)
				}
			}
			began := time.Now()
			var sending sync.WaitGroup
			for tenant, name := range names {
				sending.Go(func() {
					for n := range each {
						all[tenant%replicas].send(t, name, fmt.Sprint(n))
					}
				})
			}
			sending.Wait()
			until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == tenants*each })
			took[replicas] = time.Since(began)
			next := make(map[string]int)
			for _, got := range c.receiver.Accepted() {
				tenant, n, _ := strings.Cut(got, ":")
				if n != fmt.Sprint(next[tenant]) {
					t.Fatalf("%s came when %d was next", got, next[tenant])
				}
				next[tenant]++
			}
		})
	}
	ratio := took[1].Seconds() / took[3].Seconds()
	t.Logf("one replica took %v, three %v: %.1f times as fast", took[1], took[3], ratio)
	if ratio < 2.2 {
		t.Errorf("three replicas are %.1f times as fast as one", ratio)
	}
}
