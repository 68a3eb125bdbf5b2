package shared

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// noise is a body that no compression makes smaller.
func noise(size int) string {
	body := make([]byte, size)
	rand.Read(body)
	return string(body)
}

// small has the inbox be full soon.
func (c *cluster) small() {
	c.change = func(cfg *Config, _ *courier.Config) { cfg.MaxBytes = 1 << 20 }
}

// fill sends webhooks, each of another tenant, until there is no more room, and returns how
// many were taken in.
func (r *replica) fill(t *testing.T, size int) (taken int) {
	t.Helper()
	for {
		_, err := r.Append(inboxtest.Webhook(rand.Text(), noise(size)), false)
		if errors.Is(err, record.ErrFull) {
			return taken
		}
		if err != nil || taken > 10_000 {
			t.Fatalf("after %d webhooks: %v", taken, err)
		}
		taken++
	}
}

// Servers that grant little have room for both streams, also where all of it is just what
// the first of them asks for.
func TestRoomForBothStreams(t *testing.T) {
	for _, c := range []struct{ store, inbox, history int64 }{
		{2 << 30, 1280 << 20, 256 << 20},
		{1 << 30, 640 << 20, 256 << 20},
		{256 << 20, 160 << 20, 64 << 20},
		{100 << 20, 80 << 20, 16 << 20},
		{40 << 20, 20 << 20, 16 << 20},
		{32 << 20, 16 << 20, 16 << 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			cl := &cluster{t: t, change: func(*Config, *courier.Config) {}, parts: 4,
				server: natstest.New(func(o *server.Options) { o.JetStreamMaxStore = c.store })}
			defer cl.server.End()
			for start := range 2 {
				r := cl.start()
				stream, history, err := r.streams()
				if err != nil {
					r.stop()
					t.Fatalf("%d MiB, start %d: %v", c.store>>20, start, r.Err())
				}
				if got, past := stream.CachedInfo().Config.MaxBytes, history.CachedInfo().Config.MaxBytes; got != c.inbox || past != c.history {
					t.Errorf("%d MiB, start %d: %d MiB and %d for the history, want %d and %d", c.store>>20, start, got>>20, past>>20, c.inbox>>20, c.history>>20)
				}
				r.send(t, "acme", fmt.Sprint(start))
				r.stop()
			}
		})
	}
}

// What becomes of webhooks finds room in a full inbox, however large they are.
func TestOutcomesFindRoom(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.small()
		c.receiver.Set(inboxtest.Refusing)
		r := c.start()
		defer r.stop()
		taken := r.fill(t, 220<<10)
		if taken == 0 {
			t.Fatal("nothing was taken in")
		}
		c.receiver.Set(nil)
		until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == taken })
		time.Sleep(10 * time.Second)
		if left := len(r.waiting(t)); left > 0 {
			t.Errorf("%d of %d wait, and the receiver has them", left, taken)
		}
	})
}

// A receiver that refuses all of a full inbox, with many words, has all of it parked. It stays
// full of them, says so, and takes webhooks in again once somebody has set some aside.
func TestParksAFullInbox(t *testing.T) {
	sizes := []int{300, 10 << 10, 100 << 10}
	if testing.Short() {
		sizes = []int{3000, 100 << 10} // there are fewer of them
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.small()
				c.receiver.Set(inboxtest.Refusing)
				r := c.start()
				defer r.stop()
				taken := r.fill(t, size)
				words := strings.Repeat("unknown tenant; ", 64)
				c.receiver.Set(func(*webhookgate.Webhook, int) webhookgate.Attempt {
					return webhookgate.Attempt{Status: 422, Excerpt: words}
				})
				for more := taken; more > 0; taken += more { // what waits needs more room than what is parked
					until(t, "all are parked", func() bool {
						s := r.courier.Stats()
						return s.Parked == taken && s.Pending == 0
					})
					time.Sleep(2 * time.Second)
					more = r.fill(t, size)
				}
				if used, limit := r.Usage(); used < limit/2 {
					t.Errorf("full with %d of %d bytes", used, limit)
				}
				entries, err := r.List(record.Filter{State: record.Parked})
				if err != nil || len(entries) != taken {
					t.Fatalf("%d are parked, want %d: %v", len(entries), taken, err)
				}
				for _, e := range entries[:taken/2+1] {
					if err := r.Discard(e.ID); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(2 * time.Second)
				c.receiver.Set(nil)
				if _, err := r.Append(inboxtest.Webhook("new", noise(size)), false); err != nil {
					t.Error(err)
				}
				until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
			})
		})
	}
}

// What is remembered of tenants takes no room away from what waits, however many there are: the
// stream grows with it.
func TestMemoriesTakeNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.small()
		one, two := c.start(), c.start()
		defer one.stop()
		defer two.stop()
		until(t, "each has its share", func() bool { return one.terms() == c.parts/2 && two.terms() == c.parts/2 })
		const tenants = 100
		for n := range tenants {
			if _, err := one.Append(inboxtest.Webhook(fmt.Sprint("tenant", n), noise(16<<10)), false); err != nil {
				t.Fatalf("tenant %d: %v", n, err)
			}
			if n%10 == 0 {
				time.Sleep(2 * time.Second)
			}
		}
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == tenants })
		time.Sleep(5 * time.Second)
		for _, r := range []*replica{one, two} {
			if used, limit := r.Usage(); used != 0 || limit != 1<<20 {
				t.Errorf("%d of %d bytes are used, though nothing waits", used, limit)
			}
		}
		// What waits counts, at whichever replica, and as much of it as before is taken in.
		c.receiver.Set(inboxtest.Refusing)
		taken := one.fill(t, 10<<10)
		if taken < 60 {
			t.Errorf("%d webhooks were taken in", taken)
		}
		time.Sleep(5 * time.Second)
		a, _ := one.Usage()
		b, _ := two.Usage()
		if a != b || a < 800<<10 {
			t.Errorf("one says that %d bytes are used, the other one %d", a, b)
		}
		if _, err := two.Append(inboxtest.Webhook("new", noise(10<<10)), false); !errors.Is(err, record.ErrFull) {
			t.Errorf("the other one: %v", err)
		}
	})
}

// Where the servers have no more for what tenants are remembered by, no webhook is taken in that
// might have no room in the end; and it is said why.
func TestNoMoreRoomForMemories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, parts: 4, server: natstest.New(func(o *server.Options) { o.JetStreamMaxStore = 32 << 20 })}
		defer c.server.End()
		c.small()
		r := c.start()
		defer r.stop()
		time.Sleep(time.Second)
		var err error
		n := 0
		for ; err == nil && n < 1000; n++ {
			_, err = r.Append(inboxtest.Webhook(fmt.Sprint("tenant", n), noise(16<<10)), false)
			time.Sleep(100 * time.Millisecond)
		}
		if !errors.Is(err, record.ErrFull) || n < 50 {
			t.Fatalf("after %d tenants: %v", n, err)
		}
		if used, limit := r.Usage(); used < limit*9/10 || limit > 1<<20 {
			t.Errorf("%d of %d bytes are used", used, limit)
		}
		time.Sleep(10 * time.Second)
		if len(c.receiver.Accepted()) != n-1 || r.Err() != nil {
			t.Errorf("%d of %d delivered: %v", len(c.receiver.Accepted()), n-1, r.Err())
		}
	})
}
