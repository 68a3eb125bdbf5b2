package shared

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// A pause through one replica holds for all, also for those that start later, and nothing that
// waits is lost, or overtaken, when it ends.
func TestPauseForAll(t *testing.T) {
	for _, p := range []record.Pause{{}, {Receiver: "main"}, {Platform: "p", Tenant: "set below"}} {
		t.Run(p.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				owner, other, tenant := c.elsewhere()
				defer other.stop()
				if p.Tenant != "" {
					p.Tenant = tenant
				}
				if err := other.Pause(p); err != nil {
					t.Fatal(err)
				}
				owner.send(t, tenant, "A")
				other.send(t, tenant, "B")
				time.Sleep(20 * time.Second)
				if n := len(c.receiver.Tried()); n != 0 {
					t.Errorf("%d tries while paused", n)
				}
				if now := owner.Paused(); len(now) != 1 || !now[0].Same(p) {
					t.Errorf("the other replica has %v", now)
				}
				owner.stop()
				third := c.start() // and takes parts over
				defer third.stop()
				until(t, "each has its share", func() bool { return third.terms() == third.subjects.Parts/2 && other.terms() == other.subjects.Parts/2 })
				third.send(t, tenant, "C")
				time.Sleep(20 * time.Second)
				if n := len(c.receiver.Tried()); n != 0 {
					t.Errorf("%d tries after a replica has taken over", n)
				}
				if was, err := third.Resume(p); !was || err != nil {
					t.Fatal(was, err)
				}
				if was, err := other.Resume(p); was || err != nil {
					t.Errorf("resumed twice: %t, %v", was, err)
				}
				until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 3 })
				c.receiver.Want(t, tenant+":A", tenant+":B", tenant+":C")
				if now := other.Paused(); len(now) != 0 {
					t.Errorf("still paused: %v", now)
				}
			})
		})
	}
}

// When a pause has been confirmed no replica begins a delivery.
func TestPauseIsConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.impatient()
		c.receiver.Set(inboxtest.Status(500))
		owner := c.startAt(&natstest.Wire{Server: c.server, Delay: 200 * time.Millisecond}) // the pause reaches it late
		other := c.start()
		defer owner.stop()
		defer other.stop()
		tenant := c.tenantOf(owner, other)
		owner.send(t, tenant, "A")
		for range 5 {
			time.Sleep(1700 * time.Millisecond)
			if err := other.Pause(record.Pause{}); err != nil {
				t.Fatal(err)
			}
			tried := len(c.receiver.Tried())
			time.Sleep(20 * time.Second)
			if n := len(c.receiver.Tried()); n != tried {
				t.Errorf("%d tries after it was confirmed", n-tried)
			}
			if _, err := other.Resume(record.Pause{}); err != nil {
				t.Fatal(err)
			}
		}
		c.receiver.Set(nil)
		time.Sleep(time.Minute)
		c.receiver.Want(t, tenant+":A")
	})
}

// contents are those of all messages of both streams.
func (r *replica) contents(t *testing.T) (all string) {
	t.Helper()
	for _, s := range []*servers.Stream{r.servers.Waiting, r.servers.History} {
		err := s.Each(t.Context(), ">", 1, func(m *jetstream.RawStreamMsg) { all += string(m.Data) + fmt.Sprint(m.Header) })
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestErase(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		told := make(chan string, 1000)
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.OnSnapshot = func(webhookgate.Lane, uint64, *webhookgate.Webhook) {}
			cfg.OnErase = func(l webhookgate.Lane, _ uint64) { told <- l.Tenant }
		}
		c.impatient()
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		secret := func(s string) string { return s + "-do-not-keep" }
		owner.send(t, tenant, secret("delivered"))
		owner.send(t, "somebody", "else")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		c.receiver.Set(inboxtest.Status(422))
		owner.send(t, tenant, secret("parked"))
		until(t, "parked", func() bool { return owner.courier.Stats().Parked == 1 })
		c.receiver.Set(inboxtest.Status(500))
		other.send(t, tenant, secret("waiting"))
		other.send(t, tenant, secret("behind"))
		time.Sleep(20 * time.Second)
		lane := webhookgate.Lane{Platform: "p", Tenant: tenant}
		if all, err := other.Platforms(tenant); err != nil || fmt.Sprint(all) != "[p]" {
			t.Fatal(all, err)
		}
		if n, err := other.Erase("p", tenant); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		time.Sleep(time.Second)
		if strings.Contains(owner.contents(t), "do-not-keep") {
			t.Error("the streams still have its content")
		}
		if len(told) < 2 {
			t.Errorf("%d replicas were told", len(told))
		}
		if _, _, err := owner.Snapshot(t.Context(), lane); !errors.Is(err, record.ErrNotFound) {
			t.Errorf("its snapshot: %v", err)
		}
		for _, r := range []*replica{owner, other} {
			if all, err := r.Platforms(tenant); err != nil || len(all) != 0 {
				t.Error(all, err)
			}
			if entries, err := r.List(record.Filter{}); err != nil || len(entries) != 1 || entries[0].Tenant != "somebody" {
				t.Error(entries, err)
			}
			if s := r.courier.Stats(); s.Pending != 0 || s.Parked != 0 {
				t.Errorf("a courier has %+v", s)
			}
		}
		tried := len(c.receiver.Tried())
		time.Sleep(time.Minute) // more than the longest pause between two tries
		if n := len(c.receiver.Tried()); n != tried {
			t.Error("what was erased is tried")
		}
		c.receiver.Set(nil)
		owner.send(t, tenant, secret("behind")) // nothing is remembered
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 3 })
		time.Sleep(time.Second)
		if waiting, history := other.messages(t); waiting != 2 || history != 2 {
			t.Errorf("%d messages are left, and %d in the history", waiting, history)
		}
		if w, _, err := other.Snapshot(t.Context(), lane); err != nil || string(w.Body) != secret("behind") {
			t.Error(err)
		}
	})
}

// What was on its way into the history when its tenant was erased, and comes minutes later, is not taken. What came
// since is.
func TestLateForTheHistory(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		f, err := r.find(t.Context(), r.only(t, "acme", record.Delivered).ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Erase("p", "acme"); err != nil {
			t.Fatal(err)
		}
		r.send(t, "acme", "B")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		time.Sleep(2 * time.Minute)
		if err := r.finish(t.Context(), &f.Record, f.Content, message.PlaceOf(f.Webhook.Lane)); err != nil {
			t.Error(err)
		}
		if e := r.only(t, "acme", ""); e.ID <= f.ID {
			t.Errorf("%d is in the history again", e.ID)
		}
	})
}

// Whatever comes, or is delivered, while a tenant is erased: nothing of before stays, nothing is
// stuck, and what is left in the end can be delivered.
func TestEraseAmidst(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		for n := range 30 {
			c.receiver.Slow(time.Duration(n) * 17 * time.Millisecond)
			send := func(r *replica, word string) {
				w := inboxtest.Webhook(tenant, fmt.Sprint(word, n))
				go func() {
					if _, err := r.Append(w, false); err != nil {
						t.Error(err)
					}
				}()
			}
			send(owner, "before")
			time.Sleep(time.Duration(n%5) * 10 * time.Millisecond)
			done := make(chan error)
			go func() { _, err := other.Erase("p", tenant); done <- err }()
			time.Sleep(time.Duration(n%7) * 5 * time.Millisecond)
			send(other, "amidst")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if waiting := other.waiting(t); len(waiting) != 0 {
				t.Errorf("round %d: %v waits", n, waiting)
			}
		}
		if n, err := owner.Erase("p", tenant); err != nil {
			t.Error(n, err)
		}
		time.Sleep(time.Second)
		if waiting, history := other.messages(t); waiting > 1 || history != 0 {
			t.Errorf("%d messages are left, and %d in the history", waiting, history)
		}
	})
}

// Who is asked whether it knows of a pause may just have given its part up, and says nothing: it is
// asked again.
func TestPauseAsksAgain(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		r := c.start()
		defer r.stop()
		asked := 0
		silent, err := r.servers.Conn.Subscribe(r.subjects.Live+"do.0", func(m *nats.Msg) {
			if asked++; asked > 1 {
				_ = m.Respond(nil)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Pause(record.Pause{}); err != nil {
			t.Error(err)
		}
		if err := silent.Unsubscribe(); err != nil || asked != 2 {
			t.Errorf("asked %d times, %v", asked, err)
		}
	})
}

// A replica that was away when somebody paused deliveries, and takes parts over as soon as it is back,
// has read of that before.
func TestPausedWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		for n := range 6 {
			one, two := c.start(), c.start()
			until(t, "both deliver", func() bool { return one.Delivers() && two.Delivers() })
			two.wire.Sever()
			until(t, "one delivers all", func() bool { return one.terms() == one.subjects.Parts })
			if err := one.Pause(record.Pause{}); err != nil {
				t.Fatal(err)
			}
			for tenant := range 8 {
				one.send(t, fmt.Sprint("t", tenant), fmt.Sprint(n))
			}
			one.stop()
			time.Sleep(time.Minute + time.Duration(n)*37*time.Millisecond) // its consumers are gone by then
			tried := len(c.receiver.Tried())
			two.wire.Mend()
			until(t, "the other delivers all", func() bool { return two.terms() == two.subjects.Parts })
			time.Sleep(10 * time.Second)
			if n := len(c.receiver.Tried()); n != tried {
				t.Errorf("%d tries while paused", n-tried)
			}
			if was, err := two.Resume(record.Pause{}); !was || err != nil {
				t.Fatal(was, err)
			}
			until(t, "delivered", func() bool { return two.courier.Stats().Pending == 0 })
			two.stop()
		}
	})
}

// A damaged pause counts as one of all deliveries, as long as nobody resumes them.
func TestDamagedPause(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		m := nats.NewMsg(r.subjects.Prefix + pausesSubject)
		m.Data = []byte("{")
		if _, err := r.servers.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		r.send(t, "acme", "A")
		time.Sleep(time.Minute)
		c.receiver.Want(t)
		if was, err := r.Resume(record.Pause{}); !was || err != nil {
			t.Errorf("resumed: %v, %v", was, err)
		}
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A")
	})
}

// A replica that was away when a tenant was erased learns of it, whatever came into the lane since.
func TestErasedWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		var mu sync.Mutex
		snapshots := make(map[string]uint64)
		known := func() uint64 {
			mu.Lock()
			defer mu.Unlock()
			return snapshots["acme"]
		}
		one := c.start()
		defer one.stop()
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.Idle = true
			cfg.OnSnapshot = func(l webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
				mu.Lock()
				defer mu.Unlock()
				snapshots[l.Tenant] = id
			}
			cfg.OnErase = func(l webhookgate.Lane, upTo uint64) {
				mu.Lock()
				defer mu.Unlock()
				if snapshots[l.Tenant] <= upTo {
					delete(snapshots, l.Tenant)
				}
			}
		}
		two := c.start()
		defer two.stop()
		one.send(t, "acme", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		if known() == 0 {
			t.Fatal("not told")
		}
		two.wire.Sever()
		if _, err := one.Erase("p", "acme"); err != nil {
			t.Fatal(err)
		}
		w := inboxtest.Webhook("acme", "other")
		w.Type, w.Snapshot = "Other", false
		one.keep(t, w)
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		time.Sleep(time.Second)
		two.wire.Mend()
		until(t, "connected again", func() bool { return two.Err() == nil })
		time.Sleep(time.Minute)
		if known() != 0 {
			t.Errorf("it still knows snapshot %d, which was erased", known())
		}
	})
}

// A tenant of which much waits, and is being delivered one after the other, can be erased.
func TestEraseAmidstMany(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		c.receiver.Slow(time.Second)
		for n := range 100 {
			owner.send(t, tenant, fmt.Sprint(n))
		}
		if n, err := other.Erase("p", tenant); err != nil {
			t.Fatal(n, err)
		}
		tried := len(c.receiver.Tried())
		time.Sleep(time.Minute)
		if n := len(c.receiver.Tried()); n != tried {
			t.Error("what was erased is tried")
		}
	})
}

// What was found to be sent again, and was erased before it was, stays away.
func TestErasedBeforeSentAgain(t *testing.T) {
	for name, more := range map[string]bool{"nothing came since": false, "something came since": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				r := c.start()
				defer r.stop()
				r.send(t, "acme", "A")
				until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
				time.Sleep(time.Second)
				again := r.toRedeliver(t, "acme", record.Delivered)
				if _, err := r.Erase("p", "acme"); err != nil {
					t.Fatal(err)
				}
				if more {
					r.send(t, "acme", "B")
				}
				if err := r.ask(t.Context(), r.subjects.PartOf(message.PlaceOf(again.Lane)), again); !errors.Is(err, errMoved) {
					t.Errorf("sent again: %v", err)
				}
				if err := r.Redeliver(again.ID, true); !errors.Is(err, record.ErrNotFound) {
					t.Errorf("sent again: %v", err)
				}
				time.Sleep(time.Minute)
				for _, got := range c.receiver.Accepted()[1:] {
					if got == "acme:A" {
						t.Error("the receiver got what was erased")
					}
				}
			})
		})
	}
}

// An erasure that something came in between of, and that then failed, has nothing overtaken.
func TestEraseInVain(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.impatient()
		owner := c.startAt(&natstest.Wire{Server: c.server, Delay: 100 * time.Millisecond})
		other := c.start()
		defer owner.stop()
		defer other.stop()
		tenant := c.tenantOf(owner, other)
		c.receiver.Set(inboxtest.Status(500))
		owner.send(t, tenant, "A")
		time.Sleep(20 * time.Second)
		c.receiver.Set(nil)
		c.receiver.Slow(30 * time.Second)
		lane := webhookgate.Lane{Platform: "p", Tenant: tenant}
		erased := make(chan error)
		go func() {
			term := owner.term(owner.subjects.PartOf(message.PlaceOf(lane)))
			ctx, cancel := context.WithTimeout(t.Context(), eraseTimeout)
			defer cancel()
			last, err := owner.readEnd(ctx, message.PlaceOf(lane))
			if err != nil {
				t.Error(err)
			}
			erased <- term.erase(ctx, &errand{Lane: lane, Last: last.Seq})
		}()
		time.Sleep(450 * time.Millisecond) // it has read how the lane ends, and is about to write
		other.send(t, tenant, "B")
		err := <-erased
		time.Sleep(2 * time.Minute)
		if got := c.receiver.Accepted(); err != nil && (len(got) != 2 || got[0] != tenant+":A") || err == nil && len(got) != 0 {
			t.Errorf("the receiver accepted %v, the erasure says %v", got, err)
		}
	})
}

// A pause that somebody has deleted from the servers, or that they have lost, is still in force. It can be ended.
func TestResumeAfterLoss(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		if err := r.Pause(record.Pause{}); err != nil {
			t.Fatal(err)
		}
		stream, _, err := r.streams()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(r.subjects.Prefix+pausesSubject)); err != nil {
			t.Fatal(err)
		}
		r.send(t, "acme", "A")
		time.Sleep(time.Minute)
		c.receiver.Want(t)
		if was, err := r.Resume(record.Pause{}); !was || err != nil {
			t.Errorf("resumed: %v, %v", was, err)
		}
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A")
	})
}

// A webhook that nobody takes is on its way from its lane into the history when its tenant is erased. It does not stay there.
func TestErasedBeforeItIsInTheHistory(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		near := c.start()
		defer near.stop()
		until(t, "it delivers", func() bool { return near.terms() == near.subjects.Parts })
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		far := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
		defer far.stop()
		time.Sleep(time.Second)
		var tenants []string
		for after := time.Duration(0); after < 8*farAway; after += farAway / 2 {
			tenant := fmt.Sprint("t", after)
			tenants = append(tenants, tenant)
			var taking sync.WaitGroup
			taking.Go(func() {
				if _, err := far.Append(inboxtest.Webhook(tenant, "A"), true); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(after + time.Millisecond)
			if _, err := near.Erase("p", tenant); err != nil {
				t.Error(err)
			}
			taking.Wait()
		}
		time.Sleep(time.Minute)
		for _, tenant := range tenants {
			_, id, err := near.Snapshot(t.Context(), webhookgate.Lane{Platform: "p", Tenant: tenant})
			entries, listing := near.List(record.Filter{Tenant: tenant})
			if listing != nil {
				t.Fatal(listing)
			}
			if came := err == nil; len(entries) > 0 != came { // after the tenant was erased
				t.Errorf("%s: its last snapshot is %d, %v; listed are %v", tenant, id, err, entries)
			}
		}
	})
}
