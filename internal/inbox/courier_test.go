package inbox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
	"usher/internal/receiver"
)

// pauses returns the times between a tenant's tries.
func (k *taker) pauses(tenant string) (all []time.Duration) {
	tries := k.tried(tenant)
	for i := 1; i < len(tries); i++ {
		all = append(all, tries[i].at.Sub(tries[i-1].at).Round(10*time.Millisecond))
	}
	return all
}

func TestTries(t *testing.T) {
	t.Parallel()
	hour := func(c *setup) { c.ParkAfter = time.Hour }
	inBubble(t, "the time between them doubles, up to five minutes", func(t *testing.T, d *desk) {
		d.main.set("t", status(500))
		d.take("t", "A")
		time.Sleep(15 * time.Minute)
		d.want("pauses", fmt.Sprint(d.main.pauses("t")), "[1s 2s 4s 8s 16s 32s 1m4s 2m8s 4m16s 5m0s]")
	})
	inBubble(t, "Retry-After is kept, for an hour at most", func(t *testing.T, d *desk) {
		for asked, waits := range map[string]time.Duration{"7": 7 * time.Second, "0": time.Second, "90000": time.Hour} {
			d.main.set("t"+asked, func(n int) *http.Response {
				if n > 1 {
					return status(200)(n)
				}
				return status(503, "Retry-After", asked)(n)
			})
			d.take("t"+asked, "A")
			time.Sleep(2 * time.Hour)
			d.want("asked for "+asked, fmt.Sprint(d.main.pauses("t"+asked)), fmt.Sprint([]time.Duration{waits}))
		}
	})
	inBubble(t, "what the receiver will not take is parked at once", func(t *testing.T, d *desk) {
		for _, code := range []int{400, 410, 413, 422, 401, 404, 408, 429, 500, 0} {
			tenant := fmt.Sprint("t", code)
			d.main.set(tenant, answers(code))
			d.take(tenant, "A")
			time.Sleep(10 * time.Millisecond)
			want := "waiting"
			if slices.Contains([]int{400, 410, 413, 422}, code) {
				want = "parked"
			}
			d.want(tenant, d.states(tenant), want)
		}
	})
	inBubble(t, "parked after an hour beside others that are accepted", func(t *testing.T, d *desk) {
		d.main.set("t", status(500))
		d.take("t", "A")
		time.Sleep(10 * time.Hour)
		d.want("nobody's are accepted", d.states("t"), "waiting")
		for range 50 {
			d.take("well", fmt.Sprint(time.Now()))
			time.Sleep(time.Minute)
		}
		d.want("beside others, not long enough", d.states("t"), "waiting")
		for range 20 {
			d.take("well", fmt.Sprint(time.Now()))
			time.Sleep(time.Minute)
		}
		d.want("long enough", d.states("t"), "parked")
		d.main.set("t", nil)
		check(t, d.Redeliver(d.nth("t", 1), false))
		time.Sleep(time.Second)
		if e := d.list("t")[0]; e.State != state.Delivered || e.Tries != 1 {
			t.Errorf("sent again: %+v", e.Status)
		}
	}, hour)
	inBubble(t, "not while nobody else is accepted any more", func(t *testing.T, d *desk) {
		d.main.set("t", status(500))
		d.take("t", "A")
		time.Sleep(time.Second)
		d.take("well", "A")
		time.Sleep(10 * time.Hour)
		d.want("after the last acceptance it is the receiver", d.states("t"), "waiting")
	}, hour)
	inBubble(t, "what waits is tried now when somebody sends it again", func(t *testing.T, d *desk) {
		d.main.set("t", answers(500, 500, 500, 500, 500, 500, 500, 200))
		d.take("t", "A")
		time.Sleep(70 * time.Second)
		before := len(d.main.tried("t"))
		check(t, d.Redeliver(d.nth("t", 1), false))
		time.Sleep(10 * time.Millisecond)
		if got := len(d.main.tried("t")); got != before+1 || d.states("t") != "delivered" {
			t.Errorf("%d tries after %d: %s", got, before, d.states("t"))
		}
	})
}

// After an outage nobody waits for a backoff: the first success after five seconds without one makes due what has failed.
func TestOutageIsOver(t *testing.T) {
	t.Parallel()
	inBubble(t, "after ten minutes", func(t *testing.T, d *desk) {
		d.take("before", "A")
		d.main.set("", status(503))
		d.main.set("asked", status(503, "Retry-After", "3000"))
		d.take("asked", "A")
		for n := range 1000 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(10 * time.Minute)
		d.main.set("", nil)
		d.main.set("asked", nil)
		time.Sleep(5*time.Minute + 5*time.Second) // the first of them is tried after five minutes at most
		d.want("accepted", fmt.Sprint(len(d.main.got(""))), "1001")
		first, last := time.Duration(1<<62), time.Duration(0)
		for n := range 1000 {
			all := d.main.tried(fmt.Sprint("t", n))
			at := time.Since(all[len(all)-1].at)
			first, last = min(first, at), max(last, at)
		}
		if last-first > 5*time.Second {
			t.Errorf("between the first and the last are %v", last-first)
		}
		d.want("who asked for a later time", d.states("asked"), "waiting")
	})
}

// Tenants that always fail keep others waiting for some seconds at most, and do not fill the places.
func TestHealthyBesideFailing(t *testing.T) {
	t.Parallel()
	inBubble(t, "500", func(t *testing.T, d *desk) {
		d.main.delay = 5 * time.Millisecond
		for n := range 500 {
			d.main.set(fmt.Sprint("ill", n), status(500))
		}
		for n := range 500 {
			d.take(fmt.Sprint("ill", n), "A")
			if n%5 == 0 {
				d.take(fmt.Sprint("well", n), "A")
			}
		}
		began := time.Now()
		for time.Since(began) < 30*time.Second {
			tenant := fmt.Sprint("well", time.Now().UnixMilli())
			d.take(tenant, "A")
			at := time.Now()
			d.until(tenant, func() bool { return len(d.main.got(tenant)) == 1 })
			if took := time.Since(at); took > 2*time.Second {
				t.Fatalf("%s waited for %v", tenant, took)
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
	inBubble(t, "they hang", func(t *testing.T, d *desk) {
		d.places(8)
		for n := range 40 {
			defer d.main.hang(fmt.Sprint("ill", n))()
			d.take(fmt.Sprint("ill", n), "A")
		}
		time.Sleep(2 * time.Minute) // each has hung once: one timeout for each eight of them
		for range 100 {
			tenant := fmt.Sprint("well", time.Now().UnixMilli())
			d.take(tenant, "A")
			time.Sleep(time.Second)
			if len(d.main.got(tenant)) == 0 {
				t.Fatalf("%s waits: the failed ones have all places", tenant)
			}
		}
	})
}

// The lane that waits longest goes first, whatever its platform, and none waits for as long as more come.
func TestInTurn(t *testing.T) {
	t.Parallel()
	inBubble(t, "for long", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		d.places(8)
		for n := range 90 * 10 { // in 90 s; it takes 8 in a second
			d.take(fmt.Sprint("p", n%3, "/t", n), "A")
			time.Sleep(time.Second / 10)
		}
		for n := range 20 * 10 {
			if tenant := fmt.Sprint("t", n); len(d.main.tried(tenant)) == 0 {
				t.Errorf("%s waits for more than 70 s, but %d others were tried", tenant, len(d.main.tried("")))
				break
			}
		}
	})
}

// Large bodies are in memory one after the other, and all arrive.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	inBubble(t, "more than there is room for", func(t *testing.T, d *desk) {
		check(t, d.Pause(Pause{}))
		body := strings.Repeat("x", 100<<10)
		for n := range 20 {
			d.take(fmt.Sprint("t", n), body)
		}
		d.main.delay = time.Second
		must(d.Resume(Pause{}))(t)
		time.Sleep(30 * time.Second)
		d.want("delivered", fmt.Sprint(len(d.main.got(""))), "20")
		if most := d.main.mostAtOnce(); most < 2 || most > 6 {
			t.Errorf("%d at once", most)
		}
	}, func(c *setup) { c.Limits.Bodies = 400 << 10 })
}

func TestEnds(t *testing.T) {
	t.Parallel()
	inBubble(t, "what is under way finishes", func(t *testing.T, d *desk) {
		d.main.delay = 3 * time.Second
		for n := range 50 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Second)
		began := time.Now()
		d.end()
		if took := time.Since(began); took < 2*time.Second || took > 2100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		d.want("delivered", fmt.Sprint(len(d.main.got("")), len(d.main.tried(""))), "32 32")
		d.restart()
		time.Sleep(10 * time.Second)
		d.want("after a restart", fmt.Sprint(len(d.main.got("")), len(d.main.tried(""))), "50 50")
	})
	inBubble(t, "at a hard end it is delivered again", func(t *testing.T, d *desk) {
		d.main.delay = time.Minute
		d.take("t", "A", "B")
		time.Sleep(time.Second)
		began := time.Now()
		d.cut()
		d.end()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if e := d.list("t")[0]; e.State != state.Waiting || e.Tries != 0 {
			t.Errorf("%+v", e.Status)
		}
		d.main.delay = 0
		d.restart()
		time.Sleep(time.Minute)
		d.want("while the receiver may still be working on it", fmt.Sprint(len(d.main.tried("t"))), "1")
		time.Sleep(2 * time.Minute)
		d.want("after that", fmt.Sprint(d.main.got("t")), "[A B]")
	}, func(c *setup) { c.timeout = 2 * time.Minute })
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		path := newFile(t)
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t, inFile(t, path))
			defer d.main.hang("t")()
			d.take("t", "A")
			d.untilTried("t", 1)
			next := newDesk(t, inFile(t, killed(t, path)))
			next.take("t", "B")
			time.Sleep(15 * time.Second)
			d.want("while the receiver may still be working on it", fmt.Sprint(len(next.main.tried("t"))), "0")
			time.Sleep(10 * time.Second)
			d.want("after that", fmt.Sprint(next.main.got("t")), "[A B]")
		})
	})
	inBubble(t, "whoever comes after the end is told so", func(t *testing.T, d *desk) {
		d.shut()
		if got := d.send("t", "A"); !strings.Contains(got, "closed") {
			t.Errorf("got %q", got)
		}
		d.ended = true
	})
	inBubble(t, "taken in after the courier's end and delivered by the next", func(t *testing.T, d *desk) {
		d.end()
		d.take("t", "A")
		d.restart()
		time.Sleep(time.Second)
		d.want("after a restart", fmt.Sprint(d.main.got("t")), "[A]")
	})
}

func TestPauses(t *testing.T) {
	t.Parallel()
	crm, docs := newTaker("crm", 4, "crm"), newTaker("docs", 4, "docs")
	two := func(c *setup) { c.Receivers = receiver.NewSet(crm.Receiver, docs.Receiver) }
	inBubble(t, "of a receiver and of all", func(t *testing.T, d *desk) {
		check(t, d.Pause(Pause{Receiver: "crm"}))
		d.take("crm/a", "A")
		d.take("docs/a", "A")
		time.Sleep(time.Second)
		d.want("of one receiver", fmt.Sprint(crm.got(""), docs.got("")), "[] [a:A]")
		check(t, d.Pause(Pause{}))
		d.restart()
		d.take("docs/b", "A")
		must(d.Resume(Pause{Receiver: "crm"}))(t)
		time.Sleep(time.Minute)
		d.want("of all", fmt.Sprint(crm.got(""), docs.got("")), "[] [a:A]")
		if s := d.Stats(); len(s.Paused) != 1 || s.Paused[0].Since.IsZero() {
			t.Errorf("%+v", s.Paused)
		}
		known, err := d.Resume(Pause{})
		if !known || err != nil {
			t.Errorf("%v %v", known, err)
		}
		if known, err := d.Resume(Pause{}); known || err != nil {
			t.Errorf("twice: %v %v", known, err)
		}
		time.Sleep(10 * time.Millisecond)
		d.want("resumed", fmt.Sprint(crm.got(""), docs.got("")), "[a:A] [a:A b:A]")
	}, two)
	inBubble(t, "a receiver that is down is asked no more", func(t *testing.T, d *desk) {
		d.main.set("", unreachable)
		for n := range 20 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Minute)
		check(t, d.Pause(Pause{}))
		time.Sleep(time.Second)
		before := len(d.main.tried(""))
		time.Sleep(time.Minute)
		d.want("tries", fmt.Sprint(len(d.main.tried(""))-before), "0")
		d.main.set("", nil)
		must(d.Resume(Pause{}))(t)
		time.Sleep(6 * time.Second)
		d.want("delivered", fmt.Sprint(len(d.main.got(""))), "20")
	})
	inBubble(t, "what is under way finishes and nothing begins after it", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		for n := range 50 {
			d.take(fmt.Sprint("t", n), "A", "B")
		}
		time.Sleep(500 * time.Millisecond)
		check(t, d.Pause(Pause{}))
		time.Sleep(time.Minute)
		d.want("delivered", fmt.Sprint(len(d.main.got("")), len(d.main.tried(""))), "32 32")
	})
}

// An erasure waits for the delivery that is under way. A tenant with a long backlog, which is delivered without an
// outage, can be erased, too.
func TestEraseWaits(t *testing.T) {
	inBubble(t, "for a delivery", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		for n := range 100 {
			d.take("t", fmt.Sprint(n))
		}
		time.Sleep(5500 * time.Millisecond)
		began := time.Now()
		n, err := d.Erase("", "t")
		if took := time.Since(began); err != nil || n != 100 || took > 2*time.Second {
			t.Errorf("%d erased after %v: %v", n, took, err)
		}
		got := len(d.main.got("t"))
		d.take("t", "after")
		time.Sleep(3 * time.Second)
		if all := d.main.got("t"); len(all) != got+1 || all[got] != "after" || d.states("t") != "delivered" {
			t.Errorf("delivered after that: %v, %s", all[got:], d.states("t"))
		}
	})
	inBubble(t, "and spares what has come meanwhile", func(t *testing.T, d *desk) {
		d.main.delay = 5 * time.Second
		d.take("t", "A")
		time.Sleep(time.Second)
		before := d.nth("t", 1)
		erased := make(chan error, 1)
		go func() { _, err := d.Erase("", "t"); erased <- err }()
		time.Sleep(time.Second)
		d.take("t", "B")
		if err := <-erased; errorWord(err) != "newer" {
			t.Errorf("erased: %v", err)
		}
		time.Sleep(20 * time.Second)
		d.want("delivered", fmt.Sprint(d.main.got("t")), "[A B]")
		if n := d.nth("t", 2) - before; n > 30 {
			t.Errorf("it took %d numbers", n)
		}
		must(d.Erase("", "t"))(t)
	})
	inBubble(t, "and gives up", func(t *testing.T, d *desk) {
		d.main.delay = time.Hour
		d.take("t", "A")
		time.Sleep(time.Second)
		if n, err := d.Erase("", "t"); errorWord(err) != "busy" || n != 0 {
			t.Errorf("%d erased: %v", n, err)
		}
		if err := d.Discard(d.nth("t", 1)); errorWord(err) != "busy" {
			t.Errorf("discarded: %v", err)
		}
	}, func(c *setup) { c.timeout = 2 * time.Hour })
}

// What was accepted in an outage of the database that lasts longer than its lease is not delivered again by the
// process that knows it.
func TestAcceptedInAnOutage(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	// A file whose leases end by themselves, as in a database that replicas share.
	shared := intercepted{shared: true, write: failsWhile(&away)}
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		var want []string
		for n := range 20 {
			tenant := fmt.Sprint("t", n)
			d.take(tenant, "A", "B")
			want = append(want, tenant+":A", tenant+":B")
		}
		away.Store(true)
		time.Sleep(time.Minute)
		d.want("accepted in the outage", fmt.Sprint(len(d.main.got(""))), "20")
		away.Store(false)
		time.Sleep(time.Minute)
		got := d.main.got("")
		slices.Sort(got)
		slices.Sort(want)
		d.want("accepted", fmt.Sprint(got), fmt.Sprint(want))
	}, between(shared))
}

// A platform gets another receiver. What waits goes there soon, whatever the former one has asked for, and although
// that one is paused.
func TestPlatformMoves(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(d *desk, alpha *taker){
		"Retry-After": func(_ *desk, alpha *taker) {
			alpha.set("", func(int) *http.Response {
				answer := status(503)(0)
				answer.Header = http.Header{"Retry-After": {"3000"}}
				return answer
			})
		},
		"paused": func(d *desk, _ *taker) { check(d.t, d.Pause(Pause{Receiver: "alpha"})) },
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, open func() engine.Engine) {
				alpha, beta := newTaker("alpha", 4, "p1", "p2"), newTaker("beta", 4, "p3")
				d := newDesk(t, open, func(c *setup) { c.Receivers = receiver.NewSet(alpha.Receiver, beta.Receiver) })
				trouble(d, alpha)
				d.take("p1/t", "A")
				if name != "paused" {
					d.until("tried", func() bool { return len(d.HeldUp()) == 1 })
				}
				d.shut()
				alpha.Platforms, beta.Platforms = []string{"p2"}, []string{"p3", "p1"}
				d.start()
				d.until("delivered to its receiver of now", func() bool { return fmt.Sprint(beta.got("t")) == "[A]" })
			})
		})
	}
}
