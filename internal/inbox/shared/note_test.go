package shared

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/inboxtest"
	"usher/webhookgate"
)

// A process that was stopped while it delivered, and goes on after its part was taken over and the tenant
// erased, does not bring back what was erased.
func TestErasedBeforeAFormerHolderGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		stopped := make(chan struct{})
		c.receiver.Set(func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
			if n == 1 {
				<-stopped
			}
			return webhookgate.Attempt{Status: 200}
		})
		other.send(t, tenant, "A-do-not-keep")
		until(t, "it is being delivered", func() bool { return len(c.receiver.Tried()) == 1 })
		owner.wire.Sever()
		until(t, "taken over and delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		if _, err := other.Erase("p", tenant); err != nil {
			t.Fatal(err)
		}
		owner.wire.Mend()
		until(t, "connected again", func() bool { return owner.Err() == nil })
		close(stopped)
		time.Sleep(10 * time.Second)
		if strings.Contains(other.contents(t), "do-not-keep") {
			t.Error("what was erased is there again")
		}
	})
}

// Somebody has deleted a webhook that was parked. That what is newer was accepted can't be noted of it, and holds up nothing.
func TestParkedIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Status(422))
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		until(t, "parked", func() bool { return r.courier.Stats().Parked == 1 })
		time.Sleep(time.Second)
		stream, _, err := r.streams()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(r.subjects.Prefix+"*.state.>")); err != nil {
			t.Fatal(err)
		}
		c.receiver.Set(nil)
		r.send(t, "acme", "B")
		time.Sleep(time.Minute)
		r.send(t, "acme", "C")
		time.Sleep(time.Minute)
		if got := c.receiver.Accepted(); len(got) == 0 || got[len(got)-1] != "acme:C" {
			t.Errorf("delivered %q", got)
		}
		if s := r.courier.Stats(); s.Pending != 0 || s.Parked != 0 {
			t.Errorf("%d still wait, %d are parked", s.Pending, s.Parked)
		}
	})
}

// The largest webhook that is taken in can be finished, too: what became of it takes some bytes more.
func TestLargestIsFinished(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.impatient()
		excerpt := strings.Repeat("no! ", 256)
		c.receiver.Set(func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
			if n <= 3 {
				return webhookgate.Attempt{Status: 500, Excerpt: excerpt}
			}
			return webhookgate.Attempt{Status: 200}
		})
		r := c.start()
		defer r.stop()
		body := noise(1<<20 - outcome)
		for err := errors.New("not tried"); err != nil; body = body[:len(body)-512] {
			_, err = r.Append(inboxtest.Webhook("acme", body), false)
		}
		r.send(t, "acme", "B")
		time.Sleep(time.Minute)
		if got := c.receiver.Accepted(); len(got) != 2 || got[1] != "acme:B" {
			t.Errorf("%d deliveries", len(got))
		}
		if waiting := r.waiting(t); len(waiting) != 0 {
			t.Errorf("%d still wait", len(waiting))
		}
	})
}

// A webhook that could not be discarded is delivered, and before what came after it.
func TestDiscardInVain(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.impatient()
		c.receiver.Set(inboxtest.Status(500))
		one := c.start()
		defer one.stop()
		one.send(t, "acme", "A")
		one.send(t, "acme", "B")
		time.Sleep(90 * time.Second) // usher looks at its streams every minute
		id := one.waiting(t)[1].ID
		if err := one.js(t).DeleteStream(t.Context(), "USHER_HISTORY"); err != nil { // until usher makes it again nothing can be finished
			t.Fatal(err)
		}
		if err := one.Discard(id); err == nil {
			t.Fatal("it was discarded")
		}
		c.receiver.Set(nil)
		time.Sleep(2 * time.Minute)
		one.stop()
		two := c.start()
		defer two.stop()
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A", "acme:B")
	})
}
