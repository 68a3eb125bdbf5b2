package shared

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/webhookgate"
)

// The servers lose the last few messages, and are back before the lease has run out. What comes in then has the numbers of
// what was lost, and is delivered all the same.
func TestDeliversAfterAShortLoss(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 16
		server := startLosing(t)
		r := c.startAt(&natstest.Wire{Server: server.Server})
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		server.save(r)
		for n := range 60 {
			r.send(t, "acme", fmt.Sprint("lost ", n))
		}
		until(t, "delivered, and noted", func() bool { return len(c.receiver.Accepted()) == 60 && len(r.waiting(t)) == 0 })
		server.lose(r)
		server.connect(r)
		time.Sleep(1500 * time.Millisecond) // it has asked the servers what they have
		r.send(t, "acme", "new")
		time.Sleep(time.Minute)
		if got := c.receiver.Accepted(); len(got) != 61 || got[60] != "acme:new" {
			t.Errorf("%d were delivered, the last of them %s", len(got), got[len(got)-1])
		}
		r.stop()
		server.end()
	})
}

// The only server loses the last few messages while they are being delivered, and is back before the lease has run out. By
// then another replica has taken in so many others that no number shows the loss. What became of the lost ones must not be
// written to those that have their numbers now, and all of these are delivered, in order.
func TestOutcomesAreNotWrittenToOthersAfterALoss(t *testing.T) {
	for _, after := range []time.Duration{0, 300 * time.Millisecond, time.Second} {
		t.Run(fmt.Sprint(after), func(t *testing.T) { testShortLoss(t, 200, after) })
	}
}

// As before, but the receiver fails, and what is lost is read to be tried again: what has its number now is another tenant's, and
// is not to be sent before its turn.
func TestOthersAreNotSentAfterALoss(t *testing.T) { testShortLoss(t, 500, 0) }

// testShortLoss has the receiver answer to what is lost some time after the connection is there again.
func testShortLoss(t *testing.T, status int, after time.Duration) {
	bubble(t, func(t *testing.T, c *cluster) {
		released := make(chan struct{})
		c.receiver.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if strings.HasPrefix(string(w.Body), "lost") {
				if status == 200 {
					<-released
				}
				return webhookgate.Attempt{Status: status}
			}
			return webhookgate.Attempt{Status: 200}
		})
		c.change = func(_ *Config, cfg *courier.Config) {
			cfg.Attempts = 1000
			cfg.Pause = func(time.Duration) time.Duration { return rand.N(3 * time.Second) }
		}
		server := startLosing(t)
		one := c.startAt(&natstest.Wire{Server: server.Server})
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		two := c.startAt(&natstest.Wire{Server: server.Server})
		server.save(one, two)
		until(t, "it delivers", func() bool { return one.terms() == one.subjects.Parts })
		time.Sleep(2 * time.Second)
		for n := range 100 {
			one.send(t, fmt.Sprint("old", n%50), fmt.Sprint("lost ", n))
		}
		until(t, "on their way", func() bool { return len(c.receiver.Tried()) >= 32 })
		server.lose(one, two)
		server.connect(two)
		var want []string
		for n := range 100 {
			two.send(t, fmt.Sprint("new", n%10), fmt.Sprint(n))
			want = append(want, fmt.Sprintf("new%d:%d", n%10, n))
		}
		one.wire.Replace(server.Server)
		until(t, "connected again", func() bool { return one.servers.Conn.IsConnected() })
		time.Sleep(after)
		close(released)
		time.Sleep(time.Minute)
		got := c.receiver.Accepted()
		for tenant := range 10 {
			of := func(all []string) []string {
				some := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !strings.HasPrefix(s, fmt.Sprint("new", tenant, ":")) })
				return slices.Compact(some) // what was under way may come twice
			}
			if got, want := of(got), of(want); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
		}
		if left := one.waiting(t); len(left) != 0 {
			t.Errorf("%d still wait", len(left))
		}
		one.stop()
		two.stop()
		server.end()
	})
}

// The only server loses A, and B of the same tenant gets its number, through another replica. The replica that took A in must not
// take the next A for a copy: A, B, A are three changes. Also if the server is back before anybody has missed it.
func TestNoCopyOfWhatWasLost(t *testing.T) {
	for n := range 6 { // a client connects again at a random moment
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true } // no lease takes a number
				server := startLosing(t)
				one, two := c.startAt(&natstest.Wire{Server: server.Server}), c.startAt(&natstest.Wire{Server: server.Server})
				server.save(one, two)
				one.send(t, "acme", "A")
				before := one.servers.Seen()
				two.send(t, "other", "X")
				until(t, "measured", func() bool { return one.servers.Seen() > before })
				server.lose(one, two)
				server.connect(two, one)
				two.send(t, "acme", "B")
				one.send(t, "acme", "A")
				if n := len(one.waiting(t)); n != 2 {
					t.Errorf("%d wait, want B and A", n)
				}
				one.stop()
				two.stop()
				server.end()
			})
		})
	}
}

// The only server loses B, which was delivered, and with it that it was. The receiver holds B: the next A is no copy of the one before.
func TestNoCopyOfWhatCameBeforeALoss(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		server := startLosing(t)
		r := c.startAt(&natstest.Wire{Server: server.Server})
		delivered := func(n int) {
			t.Helper()
			until(t, "delivered, and noted", func() bool { return len(c.receiver.Accepted()) == n && len(r.waiting(t)) == 0 })
		}
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		r.send(t, "acme", "A")
		delivered(1)
		server.save(r)
		r.send(t, "acme", "B")
		delivered(2)
		server.lose(r)
		server.connect(r)
		r.send(t, "acme", "A")
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A", "acme:B", "acme:A")
		r.send(t, "acme", "C")
		delivered(4)
		if original := r.keep(t, inboxtest.Webhook("acme", "C")); original == "" {
			t.Error("a copy is not recognised")
		}
		r.stop()
		server.end()
	})
}
