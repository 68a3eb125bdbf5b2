package inbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// What the courier decides, without a database. Stories with many webhooks show these rules only by chance: most
// faults in them were not found there.

func bareCourier(places int) (*courier, *target) {
	rc := newTaker(receiver.Main, places).Receiver
	rules := lane.Rules{Receivers: receiver.NewSet(rc), Log: quiet}
	c := newCourier(&Inbox{cfg: Config{Rules: rules, Limits: DefaultLimits}})
	c.paused = func() []Pause { return nil }
	c.ending = false
	return c, c.targets[rc]
}

// answer has a tenant's try end with a status. The lane's try before was at lastTry. It says whether the failure
// counts.
func (c *courier) answer(t *target, tenant string, status int, lastTry int64) bool {
	lease := &lane.Lease{Receiver: t.Receiver, LaneName: webhookgate.LaneName{Tenant: tenant}, LastTry: lastTry}
	o := &lane.Outcome{Lease: lease, Began: time.Now(), Try: receiver.Try{Status: status}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteAnswer(t, o.Lease, o)
	return o.Counts
}

// A failure counts only if the receiver has accepted another tenant's webhook since this lane's try before. A miss
// never does.
func TestCourierWhichFailuresCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, to := bareCourier(4)
		now := func() int64 {
			time.Sleep(time.Second)
			defer time.Sleep(time.Second)
			return c.inbox.clock.at(time.Now())
		}
		c.inbox.clock.start = time.Now()
		c.inbox.clock.observe(1, time.Now())
		want := func(when string, status int, lastTry int64, counts bool) {
			t.Helper()
			if got := c.answer(to, "ill", status, lastTry); got != counts {
				t.Errorf("%s, %d: it counts: %v", when, status, got)
			}
		}
		before := now()
		want("nothing was accepted", 500, 0, false)
		c.answer(to, "well", 200, 0)
		after := now()
		want("never tried before", 500, 0, true)
		want("accepted since", 500, before, true)
		want("nothing accepted since", 500, after, false)
		for n := range everybodyFrom {
			c.answer(to, fmt.Sprint(n), 500, before)
		}
		want("fails for everybody, accepted since", 500, before, true)
		want("fails for everybody", 500, after, false)
		for _, miss := range []int{0, 502, 503, 504} {
			want("a miss", miss, before, false)
		}
		want("accepted", 200, before, false)
	})
}

// While a receiver fails for everybody, ten lanes a second go that have not failed, in half of the places at most: by
// turns the one that waits longest and the one that came last. Besides, a probe.
func TestCourierWhileItFails(t *testing.T) {
	for places, want := range map[int]string{
		1:  "first+probe, last+probe, first+probe",
		2:  "first+probe, last+probe, first+probe",
		8:  "2first+2last+probe, 2first+2last+probe, 2first+2last+probe",
		64: "5first+5last+probe, 5first+5last+probe, 5first+5last+probe",
	} {
		synctest.Test(t, func(t *testing.T) {
			c, to := bareCourier(places)
			for n := range everybodyFrom {
				c.answer(to, fmt.Sprint(n), 503, 0)
			}
			var got []string
			now := time.Now()
			for range 3 {
				now = now.Add(time.Second)
				claims := c.planClaims(now)
				if len(claims) != 1 || claims[0].Retries > 0 || claims[0].DownOnly {
					t.Fatalf("%d places: %+v", places, claims)
				}
				var parts []string
				for _, part := range []struct {
					n    int
					name string
				}{{claims[0].Fresh, "first"}, {claims[0].Newest, "last"}, {claims[0].Early, "probe"}} {
					switch part.n {
					case 0:
					case 1:
						parts = append(parts, part.name)
					default:
						parts = append(parts, fmt.Sprint(part.n, part.name))
					}
				}
				got = append(got, strings.Join(parts, "+"))
				claims[0].result.Fresh = claims[0].Fresh + claims[0].Newest
				c.noteClaims(claims)
				if places == 64 && len(c.planClaims(now.Add(time.Second/2))) > 0 {
					t.Error("more within the same second")
				}
			}
			if got := strings.Join(got, ", "); got != want {
				t.Errorf("%d places: %s, want %s", places, got, want)
			}
		})
	}
}

// However much there is, a claim asks for nothing less than nothing: a negative limit is none.
func TestCourierNeverAsksForLessThanNothing(t *testing.T) {
	for _, fails := range []bool{false, true} {
		c, to := bareCourier(4)
		if fails {
			for n := range everybodyFrom {
				c.answer(to, fmt.Sprint(n), 503, 0)
			}
		}
		to.failedLanes, to.inFlight, to.newLanes, to.newLanesAt, to.backLanes = 9, 3, -3, time.Now(), true
		to.mayHaveLanes = true
		for _, claim := range c.planClaims(time.Now()) {
			if claim.Room <= 0 || min(claim.Failed, claim.Fresh, claim.Newest, claim.Early, claim.Retries) < 0 {
				t.Errorf("%+v", claim)
			}
		}
	}
}

// Webhooks that arrive get leases ahead of the places, three for each. Then they wait for the next claim, as those
// before them do. While there are more that wait, each claim lets as many newcomers go as it has found.
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
	note := func(r claimed) {
		t.Helper()
		to.mayHaveLanes = true
		claims := c.planClaims(time.Now())
		if len(claims) != 1 || claims[0].Fresh == 0 {
			t.Fatalf("%+v", claims)
		}
		claims[0].result = r
		c.noteClaims(claims)
	}
	reserve(12, "at first")
	reserve(0, "when one waits for a claim")
	note(claimed{Fresh: 3, MoreFresh: true})
	reserve(3, "while others wait")
	reserve(0, "and then")
	note(claimed{Fresh: 2})
	reserve(12, "when nobody waits any more")
}

// As long as a claim finds as many retries as it may take, there may be more that are due.
func TestCourierMoreRetries(t *testing.T) {
	for _, more := range []bool{false, true} {
		c, to := bareCourier(4)
		claims := c.planClaims(time.Now())
		claims[0].result.MoreRetries = more
		c.noteClaims(claims)
		if to.mayHaveLanes != more {
			t.Errorf("looks again: %v", to.mayHaveLanes)
		}
	}
}

// An outcome that the database refuses is written again after 1 s, doubling. Its lease is not renewed meanwhile, and
// is given up after a minute: others may then get the lane.
func TestCourierGivesUpARefusedOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, to := bareCourier(4)
		c.hard = t.Context()
		c.inbox.engine, c.inbox.leaseTime = &intercepted{shared: true}, time.Minute
		c.inbox.works, c.inbox.run = make(chan *work, 1), t.Context()
		name := webhookgate.LaneName{Tenant: "odd"}
		lease := &lane.Lease{Webhook: &lane.Webhook{ID: 1}, Receiver: to.Receiver, LaneName: name}
		lease.Extend(time.Now().Add(time.Second)) // it would be renewed
		c.leases[lease.Key()], c.unfinished = lease, 1
		c.inbox.saveOutcome(&lane.Outcome{Lease: lease, Try: receiver.Try{Status: 200}}, c.outcomeSaved)
		began, at := time.Now(), []string{}
		for c.delivering() {
			select {
			case w := <-c.inbox.works:
				at = append(at, fmt.Sprint(time.Since(began)))
				w.failed(&engine.StatementError{Err: errors.New("not this lane")})
				c.renew(t.Context())
			case <-time.After(time.Hour):
				t.Fatal("nothing happens")
			}
		}
		if got := strings.Join(at, " "); got != "0s 1s 3s 7s 15s 31s 1m3s" {
			t.Errorf("it was written at %s", got)
		}
		if c.IsDelivering(lease.LaneName, lease.Token) || !to.waitsRejected(time.Now())[lease.LaneName] {
			t.Error("the lease is kept, or a claim may find the lane at once")
		}
	})
}
