package shared

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

const farAway = 50 * time.Millisecond

// step is how far apart the moments are at which something is tried. With -short there are half as many.
func step(d time.Duration) time.Duration {
	if testing.Short() {
		return 2 * d
	}
	return d
}

// The servers have A, but their answer is lost, and before the replica is back another
// one has appended B. A must not be appended again: it would undo B.
func TestAppendsOnceThoughTheAnswerIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one, two := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway}), c.start()
		defer one.stop()
		defer two.stop()
		time.Sleep(10 * time.Second)
		var sending sync.WaitGroup
		sending.Go(func() {
			// One server does not know it by its id, once B is there: it has to be looked for.
			if _, err := one.Append(inboxtest.Webhook("acme", "A"), false); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(3*farAway + farAway/2) // the lane was read, A is there, its answer is on the way
		one.wire.Sever()
		time.Sleep(100 * time.Millisecond)
		two.send(t, "acme", "B")
		one.wire.Mend()
		sending.Wait()
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A", "acme:B")
	})
}

// A does not get to the servers, and its sender, tired of waiting, goes on through another
// replica. The first A must not be appended now: it would undo what came after it. Nor may
// it be dropped, as it could be a change back to A: its sender, if it is still there, is
// to come again.
func TestRefusesWhatItsSenderHasGoneBeyond(t *testing.T) {
	for name, tc := range map[string]struct{ before, elsewhere []string }{
		"it sends A elsewhere, then B":                {nil, []string{"A", "B"}},
		"elsewhere A is known from a try before that": {[]string{"A"}, []string{"A", "B"}},
		"it gives A up, and sends B":                  {nil, []string{"B"}},
		"it goes back to B, which is there":           {[]string{"B"}, []string{"B"}},
	} {
		for how, trouble := range map[string]struct{ begin, end func(*natstest.Wire) }{
			"lost":  {(*natstest.Wire).Sever, (*natstest.Wire).Mend},
			"stuck": {func(w *natstest.Wire) { w.Stuck.Store(true) }, func(w *natstest.Wire) { w.Stuck.Store(false) }},
		} {
			t.Run(name+"; the first is "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T, c *cluster) {
					one, two := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway}), c.start()
					defer one.stop()
					defer two.stop()
					time.Sleep(10 * time.Second)
					for _, body := range tc.before {
						two.send(t, "acme", body)
					}
					time.Sleep(time.Second)
					var sending sync.WaitGroup
					var err error
					sending.Go(func() { _, err = one.Append(inboxtest.Webhook("acme", "A"), false) })
					time.Sleep(time.Millisecond)
					trouble.begin(one.wire)
					time.Sleep(time.Second)
					for _, body := range tc.elsewhere {
						two.keep(t, inboxtest.Webhook("acme", body))
					}
					trouble.end(one.wire)
					sending.Wait()
					if err == nil {
						t.Error("A was taken in, or dropped")
					}
					time.Sleep(20 * time.Second)
					if got := c.receiver.Accepted(); got[len(got)-1] != "acme:B" {
						t.Errorf("delivered %q", got)
					}
				})
			})
		}
	}
}

// Webhooks of a tenant that came at once, and stand in line while the servers say nothing,
// are all answered, and the line goes on afterwards.
func TestLineOutlivesAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one := c.startAt(&natstest.Wire{Server: c.server, Delay: time.Millisecond})
		defer one.stop()
		time.Sleep(time.Second)
		one.wire.Stuck.Store(true)
		var sending sync.WaitGroup
		for n := range 5 {
			sending.Go(func() {
				if _, err := one.Append(inboxtest.Webhook("acme", strconv.Itoa(n)), false); err == nil {
					t.Error("taken in without servers")
				}
			})
		}
		sending.Wait()
		one.wire.Stuck.Store(false)
		until(t, "it can be used", func() bool { return one.Err() == nil })
		one.send(t, "acme", "last")
		time.Sleep(time.Minute)
		if got := c.receiver.Accepted(); len(got) == 0 || got[len(got)-1] != "acme:last" {
			t.Errorf("delivered %q", got)
		}
	})
}

// Who is cut off delivers one more of each lane at most: the next waits until the
// servers know of the last. So no more than that comes again from who takes over.
func TestTakeoverRepeatsOneOfALane(t *testing.T) {
	const lanes, each = 5, 20
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Slow(50 * time.Millisecond)
		one := c.start()
		defer one.stop()
		until(t, "it has all", func() bool { return one.terms() == one.subjects.Parts })
		var sending sync.WaitGroup
		for lane := range lanes {
			sending.Go(func() {
				for n := range each {
					one.send(t, fmt.Sprint("t", lane), fmt.Sprint(n))
				}
			})
		}
		sending.Wait()
		time.Sleep(200 * time.Millisecond)
		one.wire.Sever()
		two := c.start()
		defer two.stop()
		time.Sleep(10 * time.Second)
		one.wire.Mend()
		time.Sleep(time.Minute)
		got := c.receiver.Accepted()
		if repeated := len(got) - lanes*each; repeated < 0 || repeated > lanes {
			t.Errorf("%d deliveries of %d webhooks in %d lanes", len(got), lanes*each, lanes)
		}
		next := make(map[string]int)
		for _, delivery := range got {
			tenant, number, _ := strings.Cut(delivery, ":")
			n, err := strconv.Atoi(number)
			if err != nil || n > next[tenant] {
				t.Errorf("%s came when %d was next", delivery, next[tenant])
			}
			next[tenant] = n + 1
		}
	})
}

// A webhook may be as large as a message of the servers, which is then one too many
// bytes; and it comes out as it went in. What is still too large is refused for good.
func TestLargeWebhook(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(' ' + rand.IntN('~'-' '+1)) // nothing in it to be left out
		}
		large := string(b)
		r.send(t, "acme", large)
		time.Sleep(time.Second)
		if got := c.receiver.Accepted(); len(got) != 1 || got[0] != "acme:"+large {
			t.Errorf("%d deliveries", len(got))
		}
		if item, err := r.Show(r.only(t, "acme", "").ID); err != nil || string(item.Body) != large {
			t.Errorf("shown otherwise: %v", err)
		}
		if _, err := r.Append(inboxtest.Webhook("acme", large+large), false); !errors.Is(err, webhookgate.ErrTooLarge) {
			t.Errorf("twice as large: %v", err)
		}
	})
}

// A tenant's code can be as long as a body. Either all know the tenant by its whole name, whoever delivers, or
// its webhook is refused for good.
func TestLongCode(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one := c.start()
		defer one.stop()
		c.receiver.Set(inboxtest.Refusing)
		code := strings.Repeat("x", 20<<10)
		one.send(t, code, "A")
		one.stop()
		two := c.start()
		defer two.stop()
		until(t, "it delivers", func() bool { return two.terms() == two.subjects.Parts })
		two.send(t, code, "B")
		if waiting := two.waiting(t); len(waiting) != 2 || waiting[0].Tenant != code || waiting[1].Tenant != code {
			t.Errorf("%d wait", len(waiting))
		}
		if all, err := two.Platforms(code); len(all) != 1 || err != nil {
			t.Errorf("it is known on %q, %v", all, err)
		}
		c.receiver.Set(nil)
		until(t, "both delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		c.receiver.Want(t, code+":A", code+":B")
		if _, err := two.Append(inboxtest.Webhook(strings.Repeat("x", 1<<19), "A"), false); !errors.Is(err, webhookgate.ErrTooLarge) {
			t.Errorf("a code that takes more than a message's headers may: %v", err)
		}
	})
}

// A limit that somebody gives to the stream may cost webhooks that wait: no more are taken in,
// it is said why, and those that are there are delivered. Without the limit all is well again.
func TestStreamIsEdited(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Status(500))
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		edit := func(most int64) {
			t.Helper()
			stream, _, err := r.streams()
			if err != nil {
				t.Fatal(err)
			}
			cfg := stream.CachedInfo().Config
			cfg.MaxMsgs = most
			if _, err := r.js(t).UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			time.Sleep(90 * time.Second) // usher looks at its streams every minute
		}
		edit(1e6)
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), "max_msgs") {
			t.Errorf("it says %v", err)
		}
		if _, err := r.Append(inboxtest.Webhook("acme", "B"), false); err == nil {
			t.Error("it took a webhook in")
		}
		r.wire.Sever() // a new connection makes no difference
		r.wire.Mend()
		time.Sleep(time.Minute)
		c.receiver.Set(nil)
		time.Sleep(6 * time.Minute) // more than the longest pause between two tries
		c.receiver.Want(t, "acme:A")
		edit(-1)
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		r.send(t, "acme", "C")
	})
}

// What somebody deletes is gone, but nothing else: deliveries go on.
func TestMessagesAreDeleted(t *testing.T) {
	for name, purge := range map[string]func(r *replica) jetstream.StreamPurgeOpt{
		"everything": func(*replica) jetstream.StreamPurgeOpt { return jetstream.WithPurgeSubject(">") },
		"leases": func(r *replica) jetstream.StreamPurgeOpt {
			return jetstream.WithPurgeSubject(r.subjects.Prefix + "*.lease")
		},
		"claims": func(r *replica) jetstream.StreamPurgeOpt {
			return jetstream.WithPurgeSubject(r.subjects.Prefix + "*.claim")
		},
		"lanes": func(r *replica) jetstream.StreamPurgeOpt {
			return jetstream.WithPurgeSubject(r.subjects.Prefix + "*.in.>")
		},
		"state": func(r *replica) jetstream.StreamPurgeOpt {
			return jetstream.WithPurgeSubject(r.subjects.Prefix + "*.state.>")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.impatient()
				c.receiver.Set(inboxtest.Status(500))
				r := c.start()
				defer r.stop()
				r.send(t, "acme", "A")
				r.send(t, "acme", "B")
				time.Sleep(20 * time.Second)
				stream, _, err := r.streams()
				if err != nil {
					t.Fatal(err)
				}
				if err := stream.Purge(t.Context(), purge(r)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				c.receiver.Set(nil)
				r.send(t, "acme", "C")
				time.Sleep(time.Minute) // more than the longest pause between two tries
				if got := c.receiver.Accepted(); !slices.Contains(got, "acme:C") || got[len(got)-1] != "acme:C" {
					t.Errorf("delivered %q", got)
				}
				if s := r.courier.Stats(); s.Pending != 0 {
					t.Errorf("%d still wait", s.Pending)
				}
			})
		})
	}
}

// A copy that stood in line before A, and is noted once the servers answer again, must not hide
// from A what came through another replica meanwhile.
func TestACopyAheadHidesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one, two := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway}), c.start()
		defer one.stop()
		defer two.stop()
		time.Sleep(10 * time.Second)
		two.send(t, "acme", "B")
		time.Sleep(time.Second)
		one.wire.Stuck.Store(true)
		var sending sync.WaitGroup
		sending.Go(func() { one.Append(inboxtest.Webhook("acme", "B"), false) })
		time.Sleep(time.Millisecond)
		sending.Go(func() {
			if _, err := one.Append(inboxtest.Webhook("acme", "A"), false); !errors.Is(err, ErrStale) {
				t.Errorf("A, whose sender has gone on: %v", err)
			}
		})
		time.Sleep(time.Second)
		if original := two.keep(t, inboxtest.Webhook("acme", "B")); original == "" {
			t.Error("B is no copy")
		}
		one.wire.Stuck.Store(false)
		sending.Wait()
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:B")
	})
}

// The servers come back without the end of the stream: what is known here is of messages that
// are no more. All is read again, and goes on.
func TestStreamGetsShorter(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		r.send(t, "acme", "A")
		time.Sleep(5 * time.Second)
		r.believe(t, 1_000_000) // as if there had been so much more
		r.ends.Add(message.PlaceOf(webhookgate.Lane{Platform: "p", Tenant: "acme"}), message.NewEnd(999_999, message.Head{Kind: message.Memory}))
		time.Sleep(5 * time.Second)
		if seen := r.servers.Seen(); seen > 1_000_000 {
			t.Errorf("it still believes in message %d", seen)
		}
		r.send(t, "acme", "B")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
	})
}

// Lanes in backoff, with all that waits behind them, hold up no other, also after a takeover.
func TestManyWaitAndOthersPass(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if strings.HasPrefix(w.Lane.Tenant, "ill") {
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		one := c.start()
		defer one.stop()
		until(t, "it delivers", func() bool { return one.terms() == one.subjects.Parts })
		for n := range 400 {
			one.send(t, fmt.Sprint("ill", n%40), fmt.Sprint(n))
		}
		one.send(t, "well", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		two := c.start()
		defer two.stop()
		one.stop()
		until(t, "taken over", func() bool { return two.courier.Stats().Pending == 400 })
		entries, err := two.List(record.Filter{State: record.Waiting, Limit: 500})
		if err != nil || len(entries) != 400 {
			t.Fatalf("%d wait: %v", len(entries), err)
		}
		tried := 0
		for _, e := range entries {
			tried += min(e.Tries, 1)
		}
		if tried != 40 {
			t.Errorf("the tries of %d webhooks are known, want those of the first of each lane", tried)
		}
		two.send(t, "well", "B")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
	})
}

// A webhook that is refused as outdated, and whose first try the servers may still get, can't come in
// after that.
func TestRefusedIsShutOut(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one, two := c.start(), c.start()
		defer one.stop()
		defer two.stop()
		time.Sleep(10 * time.Second)
		w := inboxtest.Webhook("acme", "A")
		a := &arriving{Webhook: w, place: message.PlaceOf(w.Lane), came: time.Now(), seen: one.servers.Seen()}
		two.send(t, "acme", "B") // its sender has gone on elsewhere
		time.Sleep(patience + time.Second)
		last, err := one.readEnd(t.Context(), a.place)
		if err != nil {
			t.Fatal(err)
		}
		a.unsure, a.tried = true, last.Seq
		if _, err := one.arrive(t.Context(), a); !errors.Is(err, ErrStale) {
			t.Fatalf("it was taken in: %v", err)
		}
		if err := one.extend(t.Context(), a, last); !servers.Conflict(err) { // what was stuck arrives
			t.Errorf("the first try came in: %v", err)
		}
		if original := two.keep(t, inboxtest.Webhook("acme", "B")); original == "" {
			t.Error("B is no copy any more")
		}
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:B")
	})
}
