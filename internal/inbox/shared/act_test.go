package shared

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// only returns the one entry of a tenant in a state.
func (r *replica) only(t *testing.T, tenant string, state record.State) record.Entry {
	t.Helper()
	entries, err := r.List(record.Filter{Tenant: tenant, State: state})
	if err != nil || len(entries) != 1 {
		t.Fatalf("%s of %s: %v, %v", state, tenant, entries, err)
	}
	return entries[0]
}

// elsewhere returns two replicas, and a tenant whose webhooks the first one delivers.
func (c *cluster) elsewhere() (owner, other *replica, tenant string) {
	c.t.Helper()
	owner, other = c.start(), c.start()
	return owner, other, c.tenantOf(owner, other)
}

// tenantOf names a tenant whose webhooks owner delivers, once both have their share.
func (c *cluster) tenantOf(owner, other *replica) string {
	c.t.Helper()
	until(c.t, "each has its share", func() bool { return owner.terms() == owner.subjects.Parts/2 && other.terms() == other.subjects.Parts/2 })
	for n := 0; ; n++ {
		tenant := fmt.Sprint("tenant", n)
		if owner.term(owner.subjects.PartOf(message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: tenant}))) != nil {
			return tenant
		}
	}
}

func (r *replica) terms() int { return r.leases.Held() }

// What is parked, waits or is finished can be acted upon through whichever replica.
func TestActThroughAnotherReplica(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		c.receiver.Set(inboxtest.Status(422))
		owner.send(t, tenant, "A")
		until(t, "parked", func() bool { return owner.courier.Stats().Parked == 1 })
		e := other.only(t, tenant, record.Parked)
		if e.Tries != 1 || e.Attempts[0].Status != 422 {
			t.Errorf("it stands as %+v", e)
		}

		c.receiver.Set(nil)
		if err := other.Redeliver(e.ID, false); err != nil {
			t.Fatal(err)
		}
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		if e := other.only(t, tenant, ""); e.State != record.Delivered || len(e.Attempts) != 2 {
			t.Errorf("it stands as %+v", e)
		}
		if s := owner.courier.Stats(); s.Parked != 0 || s.Pending != 0 {
			t.Errorf("the courier has %+v", s)
		}

		other.send(t, tenant, "B")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		time.Sleep(time.Second)
		overwrite := new(record.OverwriteError)
		if err := other.Redeliver(e.ID, false); !errors.As(err, &overwrite) {
			t.Errorf("redelivering an old one: %v", err)
		}
		if err := other.Redeliver(e.ID, true); err != nil {
			t.Error(err)
		}
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 3 })
		other.send(t, tenant, "B") // which the receiver no longer holds
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 4 })
		c.receiver.Want(t, tenant+":A", tenant+":B", tenant+":A", tenant+":B")
		time.Sleep(time.Second)

		c.receiver.Set(inboxtest.Status(500))
		other.send(t, tenant, "C")
		other.send(t, tenant, "D")
		until(t, "tried some times", func() bool { return len(c.receiver.Tried()) > 8 })
		entries, err := other.List(record.Filter{State: record.Waiting})
		if err != nil || len(entries) != 2 {
			t.Fatal(entries, err)
		}
		// The last of the lane first: what waits before it must stay.
		for n, id := range []uint64{entries[0].ID, entries[1].ID} {
			until(t, "discarded", func() bool { return other.Discard(id) == nil })
			if left := len(other.waiting(t)); left != 1-n {
				t.Errorf("%d wait", left)
			}
		}
		if err := other.Discard(entries[0].ID); !errors.Is(err, record.ErrFinished) {
			t.Errorf("discarding once more: %v", err)
		}
		c.receiver.Set(nil)
		other.send(t, tenant, "D")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 5 })
	})
}

func (r *replica) waiting(t *testing.T) []record.Entry {
	t.Helper()
	entries, err := r.List(record.Filter{State: record.Waiting})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestForget(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		owner.send(t, tenant, "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		if n, err := other.Forget(nil, tenant); n != 1 || err != nil {
			t.Errorf("forgot %d, %v", n, err)
		}
		if n, err := other.Forget(nil, "nobody"); n != 0 || err != nil {
			t.Errorf("forgot %d of nobody, %v", n, err)
		}
		owner.send(t, tenant, "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
	})
}

// What nobody takes is kept, and what waits of its tenant stays.
func TestKept(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		c.receiver.Set(inboxtest.Refusing)
		r.send(t, "acme", "A")
		for _, body := range []string{"B", "C", "D"} {
			if _, err := r.Append(inboxtest.Webhook("acme", body), true); err != nil {
				t.Fatal(err)
			}
			if original, err := r.Append(inboxtest.Webhook("acme", body), true); err != nil || original == "" {
				t.Errorf("the copy of a kept one: %q, %v", original, err)
			}
		}
		c.receiver.Set(nil)
		until(t, "A delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		if got := r.states(t); got[record.Kept] != 3 || got[record.Delivered] != 1 || len(got) != 2 {
			t.Error(got)
		}
		r.send(t, "acme", "A") // it was kept otherwise since
		until(t, "A delivered again", func() bool { return len(c.receiver.Accepted()) == 2 })
		time.Sleep(time.Second)
		if waiting, _ := r.messages(t); waiting != 1 {
			t.Errorf("%d messages are left", waiting)
		}
	})
}

// Parts spread over the replicas that are there; what one of them held is delivered by the
// others.
func TestPartsSpread(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = message.Parts
		one := c.start()
		defer one.stop()
		until(t, "it has all", func() bool { return one.terms() == message.Parts })
		c.receiver.Set(inboxtest.Refusing)
		for n := range 100 {
			one.send(t, fmt.Sprint("t", n), "A")
		}
		two, three := c.start(), c.start()
		defer two.stop()
		defer three.stop()
		began := time.Now()
		until(t, "each has its share", func() bool {
			return one.terms()+two.terms()+three.terms() == message.Parts && min(one.terms(), two.terms(), three.terms()) == message.Parts/3
		})
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("it took %v until each had its share", took)
		}
		began = time.Now()
		two.wire.Sever()
		until(t, "two take all", func() bool { return one.terms()+three.terms() == message.Parts })
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("it took %v until the parts of one that is gone were taken over", took)
		}
		c.receiver.Set(nil)
		until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == 100 })
		began = time.Now()
		three.stop()
		until(t, "one takes all", func() bool { return one.terms() == message.Parts })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v until what was given back was taken", took)
		}
	})
}

// A snapshot is to be had for as long as nobody erases it, however the webhook fares, and
// whatever other events come after it.
func TestBearer(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(_ *Config, cfg *courier.Config) { cfg.Attempts = 1 }
		r := c.start()
		defer r.stop()
		event := func(body string) {
			w := inboxtest.Webhook("acme", body)
			w.Type, w.Snapshot = "Other", false
			r.keep(t, w)
		}
		want := func(body string) {
			t.Helper()
			time.Sleep(time.Second)
			last, err := r.readEnd(t.Context(), message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: "acme"}))
			if err != nil {
				t.Fatal(err)
			}
			m, err := r.servers.Waiting.Get(t.Context(), last.Bearer)
			if err != nil {
				t.Fatalf("the bearer %d: %v", last.Bearer, err)
			}
			if w, err := message.Packed(m.Header, m.Data).Unpack(); err != nil || string(w.Body) != body {
				t.Errorf("the last snapshot is %s, %v, want %s", w.Body, err, body)
			}
		}
		c.receiver.Set(inboxtest.Refusing)
		r.send(t, "acme", "A")
		event("1")
		event("2")
		want("A")
		c.receiver.Set(nil)
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 3 })
		want("A")
		event("3")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 4 })
		want("A")
		c.receiver.Set(inboxtest.Status(500))
		r.send(t, "acme", "B")
		until(t, "parked", func() bool { return r.courier.Stats().Parked == 1 })
		want("B")
		c.receiver.Set(nil)
		r.send(t, "acme", "B")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 5 })
		want("B")
		if waiting, _ := r.messages(t); waiting != 1 {
			t.Errorf("%d messages are left", waiting)
		}
	})
}

// Who gives a part up answers what it was asked before that: who asks is not left waiting, and asks who has it next.
func TestAskedWhileLeaving(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Refusing)
		one := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer one.stop()
		until(t, "it delivers", func() bool { return one.terms() == one.subjects.Parts })
		one.send(t, "acme", "A")
		time.Sleep(time.Second)
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		idle := c.start()
		defer idle.stop()
		id := idle.only(t, "acme", record.Waiting).ID
		asking := make(chan error)
		go func() { asking <- idle.Discard(id) }()
		time.Sleep(farAway / 2) // the request is on its way
		part := one.subjects.PartOf(message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: "acme"}))
		one.term(part).Leave()
		began := time.Now()
		if err := <-asking; err != nil && !errors.Is(err, record.ErrBusy) || time.Since(began) > 2*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		until(t, "discarded by who has the part then", func() bool {
			err := idle.Discard(id)
			return err == nil || errors.Is(err, record.ErrFinished)
		})
	})
}

// What is asked for while nobody delivers is done by the next one who does.
func TestAskedBeforeAnybodyDelivers(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Refusing)
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		idle := c.start()
		defer idle.stop()
		idle.send(t, "acme", "A")
		idle.send(t, "acme", "B")
		if err := idle.Discard(idle.waiting(t)[0].ID); !errors.Is(err, record.ErrNobody) {
			t.Errorf("nobody delivers, and it says %v", err)
		}
		asking := make(chan error)
		go func() { asking <- idle.Discard(idle.waiting(t)[0].ID) }()
		time.Sleep(time.Second)
		c.change = func(*Config, *courier.Config) {}
		one := c.start()
		defer one.stop()
		if err := <-asking; err != nil {
			t.Error(err)
		}
		idle.only(t, "acme", record.Discarded)
	})
}

// The servers count all messages, and most of them are no webhooks of that number.
func TestIDOfAnotherMessage(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Status(422))
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		until(t, "parked", func() bool { return r.courier.Stats().Parked == 1 })
		e := r.only(t, "acme", record.Parked)
		m, err := r.servers.LastWaiting(t.Context(), r.subjects.State(message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: "acme"}), e.ID))
		if err != nil {
			t.Fatal(err)
		}
		if item, err := r.Show(m.Sequence); !errors.Is(err, record.ErrNotFound) {
			t.Errorf("webhook %d is shown as %+v, %v", m.Sequence, item, err)
		}
	})
}
