package inbox

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/receiver"
	"usher/webhookgate"
)

// What the courier decides, without a database. Stories with many webhooks show these rules only by chance: most faults in them were not
// found there.

func bareCourier(places int) (*courier, *target) {
	rc := newTaker(receiver.Main, places).Receiver
	c := newCourier(&Inbox{cfg: Config{Receivers: receiver.NewSet(rc), Limits: DefaultLimits, Log: slog.New(slog.DiscardHandler)}})
	c.paused = func() []Pause { return nil }
	c.ending = false
	return c, c.targets[rc]
}

// answer has a tenant's try end with a status. It returns whether that was a miss.
func (c *courier) answer(t *target, tenant string, status int, everybody bool) bool {
	o := &Outcome{Lease: &Lease{Receiver: t.Receiver, lane: webhookgate.Lane{Tenant: tenant}}, Began: time.Now(), Try: receiver.Try{Status: status}, Everybody: everybody}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteAnswer(t, o.Lease, o)
	return o.IsMiss()
}

// A receiver is down while it fails for everybody (three tenants), and its last ten tries and all of the last five seconds were misses.
func TestCourierDown(t *testing.T) {
	for name, tc := range map[string]struct {
		tenants, tries int
		apart          time.Duration
		last           int // the status of the last try
		down           bool
	}{
		"all of it":             {3, 10, time.Second, 503, true},
		"nine tries":            {3, 9, time.Second, 503, false},
		"two tenants":           {2, 20, time.Second, 503, false},
		"four seconds":          {3, 20, 200 * time.Millisecond, 503, false},
		"500 is a miss, too":    {3, 13, time.Second, 500, true}, // from the third tenant on
		"the last is a 422":     {3, 20, time.Second, 422, false},
		"the last one is a 200": {3, 20, time.Second, 200, false},
		"no answer at all":      {3, 10, time.Second, 0, true},
		"ten in five seconds":   {3, 10, 500 * time.Millisecond, 503, true},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, to := bareCourier(4)
				c.answer(to, "well", 200, false)
				for n := range tc.tries {
					time.Sleep(tc.apart)
					status := tc.last
					if status == 422 || status == 200 {
						if status = 503; n == tc.tries-1 {
							status = tc.last
						}
					}
					c.answer(to, fmt.Sprint("t", n%tc.tenants), status, false)
				}
				if got := to.down(time.Now()); got != tc.down {
					t.Errorf("down: %v, want %v", got, tc.down)
				}
			})
		})
	}
}

// A try that began while the receiver failed for everybody says nothing about its webhook, also if the receiver is back when it ends.
func TestCourierTryThatOutlastsAnOutage(t *testing.T) {
	for _, tc := range []struct {
		everybody bool
		status    int
		miss      bool
	}{{true, 500, true}, {false, 500, false}, {true, 422, false}, {false, 503, true}} {
		c, to := bareCourier(4)
		c.answer(to, "well", 200, false)
		if got := c.answer(to, "slow", tc.status, tc.everybody); got != tc.miss {
			t.Errorf("%+v: a miss: %v", tc, got)
		}
	}
	inBubble(t, "for real", func(t *testing.T, d *desk) {
		for n := range 3 {
			d.main.set(fmt.Sprint("t", n), answers(500, 200))
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(10 * time.Millisecond)
		d.main.set("slow", answers(500, 200))
		release := d.main.hang("slow")
		d.take("slow", "A")
		time.Sleep(3 * time.Second) // meanwhile the others are accepted
		release()
		time.Sleep(time.Minute)
		if e := d.list("slow")[0]; e.State != Delivered || e.Tries != 2 || e.Counted != 1 {
			t.Errorf("%s after %d tries, of which %d count", e.State, e.Tries, e.Counted)
		}
	})
	c, to := bareCourier(4) // the third tenant's failure itself is one
	for n, want := range []bool{false, false, true} {
		if got := c.answer(to, fmt.Sprint(n), 500, false); got != want {
			t.Errorf("tenant %d: a miss: %v", n, got)
		}
	}
}

// While a receiver is down, lanes that have not failed go by turns: the one that waits longest, the one that came last.
func TestCourierLooksAtBothEnds(t *testing.T) {
	for places, want := range map[int]string{1: "first last first last", 2: "first last first last", 4: "first+last first+last first+last first+last", 8: "2first+2last 2first+2last first+last 0"} {
		synctest.Test(t, func(t *testing.T) {
			c, to := bareCourier(places)
			for n := range 10 {
				time.Sleep(time.Second)
				c.answer(to, fmt.Sprint(n%3), 503, false)
			}
			to.lastProbe = time.Now().Add(time.Hour)
			var got []string
			now := time.Now()
			for range 4 {
				if places < 8 { // each a second; else within one
					now = now.Add(time.Second)
				}
				claims := c.planClaims(now)
				if len(claims) == 0 {
					got = append(got, "0")
					continue
				}
				var parts []string
				for _, part := range []struct {
					n    int
					name string
				}{{claims[0].Fresh, "first"}, {claims[0].Newest, "last"}} {
					switch part.n {
					case 0:
					case 1:
						parts = append(parts, part.name)
					default:
						parts = append(parts, fmt.Sprint(part.n, part.name))
					}
				}
				got = append(got, strings.Join(parts, "+"))
				c.noteClaims(claims, []Claimed{{Fresh: claims[0].Fresh + claims[0].Newest}}, nil)
			}
			if got := strings.Join(got, " "); got != want {
				t.Errorf("%d places: %s, want %s", places, got, want)
			}
		})
	}
}

// Webhooks that arrive get leases ahead of the places, three for each. Then they wait for the next claim, as those before them do. While
// there are more that wait, each claim lets as many newcomers go as it has found.
func TestCourierNewcomers(t *testing.T) {
	c, to := bareCourier(4)
	reserve := func(want int, when string) {
		t.Helper()
		got := 0
		for got < 100 && c.Reserve(to.Receiver, 1) {
			got++
		}
		if got != want {
			t.Errorf("%s: %d leases, want %d", when, got, want)
		}
		for range got {
			c.Release(to.Receiver, 1)
		}
	}
	claimed := func(r Claimed) {
		t.Helper()
		to.mayHaveLanes = true
		claims := c.planClaims(time.Now())
		if len(claims) != 1 || claims[0].Fresh == 0 {
			t.Fatalf("%+v", claims)
		}
		c.noteClaims(claims, []Claimed{r}, nil)
	}
	reserve(12, "at first")
	reserve(0, "when one waits for a claim")
	claimed(Claimed{Fresh: 3, MoreFresh: true})
	reserve(3, "while others wait")
	reserve(0, "and then")
	claimed(Claimed{Fresh: 2})
	reserve(12, "when nobody waits any more")
}

// As long as a claim finds as many retries as it may take, there may be more that are due.
func TestCourierMoreRetries(t *testing.T) {
	for _, more := range []bool{false, true} {
		c, to := bareCourier(4)
		c.noteClaims(c.planClaims(time.Now()), []Claimed{{MoreRetries: more, Retried: true}}, nil)
		if to.mayHaveLanes != more {
			t.Errorf("looks again: %v", to.mayHaveLanes)
		}
	}
}
