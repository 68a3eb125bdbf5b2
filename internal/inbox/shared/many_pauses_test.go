package shared

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
)

// Many tenants were paused once, and all of them were resumed. Who takes the parts over still delivers.
func TestTakesOverAfterManyPauses(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one := c.start()
		defer one.stop()
		until(t, "it delivers", func() bool { return one.terms() == one.subjects.Parts })
		for n := range 300 {
			p := record.Pause{Platform: "p", Tenant: fmt.Sprint("t", n)}
			if err := one.Pause(p); err != nil {
				t.Fatal(err)
			}
			if was, err := one.Resume(p); !was || err != nil {
				t.Fatal(was, err)
			}
		}
		one.send(t, "acme", "A")
		until(t, "delivered, and noted", func() bool { return len(c.receiver.Accepted()) == 1 && len(one.waiting(t)) == 0 })
		one.stop()
		two := c.startAt(&natstest.Wire{Server: c.server, Delay: 5 * time.Millisecond})
		defer two.stop()
		until(t, "it takes webhooks in", func() bool { return two.Err() == nil })
		if _, err := two.Append(inboxtest.Webhook("acme", "B"), false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		c.receiver.Want(t, "acme:A", "acme:B")
		if n := two.terms(); n != two.subjects.Parts {
			t.Errorf("after two minutes it delivers %d of %d parts", n, two.subjects.Parts)
		}
	})
}

// All pauses are one message. When they no longer fit into it, who pauses one more tenant is told so, and what to do.
func TestTooManyPauses(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.server.End()
		c.server = natstest.New(func(o *server.Options) { o.MaxPayload = 4 << 10 })
		r := c.start()
		defer r.stop()
		until(t, "it can be used", func() bool { return r.Err() == nil })
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			err = r.Pause(record.Pause{Platform: "p", Tenant: fmt.Sprint("tenant", n)})
		}
		if err == nil || !strings.Contains(err.Error(), "resume some of them, or raise max_payload") {
			t.Fatalf("pause %d: %v", n, err)
		}
		if was, err := r.Resume(record.Pause{Platform: "p", Tenant: "tenant0"}); !was || err != nil {
			t.Error(was, err)
		}
		if err := r.Pause(record.Pause{Platform: "p", Tenant: "other"}); err != nil {
			t.Error(err)
		}
	})
}
