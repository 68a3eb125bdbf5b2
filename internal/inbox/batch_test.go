package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/receiver"
)

// together runs all operations in one transaction, in this order.
func (d *desk) together(all ...func()) {
	stands, goesOn := make(chan struct{}), make(chan struct{})
	d.submit(&work{wanted: func() bool { close(stands); <-goesOn; return false }})
	<-stands // so does the writer, outside of any transaction
	d.stand(true)
	var wg sync.WaitGroup
	for _, f := range all {
		before := d.asked()
		done := make(chan struct{})
		wg.Go(func() { defer close(done); f() })
		d.until("the next is queued", func() bool {
			select {
			case <-done: // it needs no transaction
				return true
			default:
				return d.asked() > before
			}
		})
	}
	d.asked() // puts them in order
	d.stand(false)
	close(goesOn)
	wg.Wait()
}

func (d *desk) stand(yes bool) {
	d.looking.Lock()
	defer d.looking.Unlock()
	d.stands, d.queue = yes, nil
}

// asked is how many operations wait for the writer, which stands still. Those that name no lane and no webhook do not
// count: usher makes them by itself, at any time, to claim lanes or to tell of changes.
func (d *desk) asked() (count int) {
	d.looking.Lock()
	defer d.looking.Unlock()
	if !d.stands { // somebody has looked until now for what is done by now; who put that back would have it done twice
		return math.MaxInt
	}
	for range len(d.works) {
		if w := <-d.works; !slices.Contains(d.queue, w) {
			d.queue = append(d.queue, w)
		}
	}
	for _, w := range d.queue { // another one may get in front of them; the next look at them puts it last
		count += number(len(w.lanes)+len(w.known)+len(w.hooks) > 0)
		d.works <- w
	}
	return count
}

// Operations that share a transaction with an action come before it or after it, like any other.
func TestTogetherWithAnAction(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		one := func(tenant, body string, before ...func(*desk)) func() {
			return func() { d.want(tenant+" is taken in", d.send(tenant, body), "+") }
		}
		erase := func(tenant string) func() {
			return func() { must(d.Erase("", tenant))(t) }
		}
		d.together(one("a", "A"), func() {
			if _, err := d.Erase("", "a"); err != nil && errorWord(err) != "newer" { // A came after somebody asked
				t.Error(err)
			}
		}, one("a", "B"))
		d.idle("a")
		if got := d.main.got("a"); got[len(got)-1] != "B" || !strings.HasSuffix(d.states("a"), "delivered") {
			t.Errorf("taken in after an erasure: %v %s", got, d.states("a"))
		}

		d.take("b", "A")
		d.idle("b")
		id := d.nth("b", 1)
		d.together(erase("b"), func() {
			if err := d.Redeliver(id, true); err == nil {
				t.Error("sent again, though it was erased before")
			}
		})
		d.until("nothing of b", func() bool { return d.Stats().Pending == 0 })

		d.together(one("d", "A"), one("d", "B"), one("d", "A"), func() { d.want("a copy", d.send("d", "A"), "=") })
		d.idle("d")
		d.want("at once", fmt.Sprint(d.main.got("d")), "[A B A]")
	})
}

// A receiver has several platforms. The lane that waits longest goes first, whatever its platform.
func TestPlatformsTakeTurns(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) {
			c.Receivers = receiver.NewSet(newTaker("one", 1).Receiver)
		})
		one := d.cfg.Receivers.All()[0].Transport.(*taker)
		check(t, d.Pause(Pause{}))
		var want []string
		for n := range 12 {
			tenant := fmt.Sprintf("t%02d", n)
			d.take([]string{"z", "a", "m", ""}[n%4]+"/"+tenant, "A")
			want = append(want, tenant+":A")
		}
		must(d.Resume(Pause{}))(t)
		d.idle("")
		// A claim from before the pause may have found the first lane. Its try is stopped, and it is due later then.
		stopped := strings.Contains(d.log.String(), "delivery interrupted")
		if got := one.got(""); !slices.Equal(got, want) && !stopped {
			t.Errorf("in the order %v", got)
		}
	})
}

// However many platforms a receiver has, no more bodies are read at once than lanes are claimed.
func TestClaimsReadWhatTheyTake(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var most atomic.Int64
		d := newDesk(t, open, between(intercepted{asks: func(s *statement) error {
			if s.name == "next_waiting" {
				most.Store(max(most.Load(), int64(len(s.args[0].([]string)))))
			}
			return nil
		}}), func(c *setup) {
			c.Receivers = receiver.NewSet(newTaker("one", 1).Receiver)
		})
		check(t, d.Pause(Pause{}))
		for n := range 60 {
			d.take(fmt.Sprintf("p%d/t%d", n%20, n), "A")
		}
		must(d.Resume(Pause{}))(t)
		d.idle("")
		if most := most.Load(); most > 6 { // a receiver with one place holds three lanes, and may ask in two ways
			t.Errorf("%d webhooks were read at once", most)
		}
	})
}

// held returns the bytes of bodies in memory. c.mu is held.
func (c *courier) held() (bytes int64) {
	for _, t := range c.targets {
		bytes += t.bodies
	}
	return bytes
}

// endsEmpty ends the courier, and checks that it holds nothing more.
func (d *desk) endsEmpty() {
	d.t.Helper()
	d.end()
	d.courier.mu.Lock()
	defer d.courier.mu.Unlock()
	if n := len(d.courier.leases); n != 0 {
		d.t.Errorf("%d leases", n)
	}
	for _, to := range d.courier.targets {
		if to.reserved != 0 || to.inFlight != 0 || to.failedLanes != 0 || len(to.queue) != 0 || to.bodies != 0 {
			d.t.Errorf("%s: %d reserved, %d under way, %d failed, %d in the queue, %d bytes",
				to.Name, to.reserved, to.inFlight, to.failedLanes, len(to.queue), to.bodies)
		}
	}
}

// The courier counts the bytes of bodies in memory. At the end the count is zero.
func TestBodiesAreCounted(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for n := range 20 { // some at once, some from the database, some after a failure, some large
			tenant := fmt.Sprint("t", n)
			d.main.set(tenant, answers(503, 500, 200))
			d.take(tenant, "A", strings.Repeat("B", 100_000), "C")
		}
		d.idle("")
		d.endsEmpty()
	})
}

// A webhook that is in memory and waits for a place must not take the room for bodies that the webhook in that place
// waits for.
func TestBodiesBehindOneThatIsNotHeld(t *testing.T) {
	if testing.Short() {
		t.Skip("its bodies are large")
	}
	inBubble(t, "one place", func(t *testing.T, d *desk) {
		d.places(1)
		large := strings.Repeat("A", int(d.cfg.Limits.Bodies/2))
		check(t, d.Pause(Pause{Tenant: "stored"}))
		d.take("stored", large)
		release := d.main.hang("first")
		d.take("first", "A")
		must(d.Resume(Pause{Tenant: "stored"}))(t)
		time.Sleep(2 * time.Second) // its lease waits for the only place, and its content is not in memory
		d.take("direct", large)
		release()
		time.Sleep(5 * time.Second)
		if got := len(d.main.got("")); got != 3 {
			t.Errorf("%d of 3 were delivered", got)
		}
	}, little)
}

// However many places a receiver has, a claim reads no more bodies than the courier may hold.
func TestClaimsBoundBodies(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it stores many webhooks")
	}
	inBubble(t, "many places", func(t *testing.T, d *desk) {
		d.places(2000)
		check(t, d.Pause(Pause{}))
		body := strings.Repeat("A", 60_000)
		const count = 90
		var release []func()
		for n := range count {
			d.take(fmt.Sprint("t", n), body)
			release = append(release, d.main.hang(fmt.Sprint("t", n)))
		}
		must(d.Resume(Pause{}))(t)
		time.Sleep(5 * time.Second)
		d.courier.mu.Lock()
		if held := d.courier.held(); held > d.cfg.Limits.Bodies {
			t.Errorf("%d bytes are held", held)
		}
		d.courier.mu.Unlock()
		for _, f := range release {
			f()
		}
		time.Sleep(time.Minute)
		if got := len(d.main.got("")); got != count {
			t.Errorf("%d of %d were delivered", got, count)
		}
	}, little)
}

// Receivers that hang may have all of their room for bodies, and more. Meanwhile any other receiver gets its webhooks
// as if they were not there.
func TestBodiesOfAnotherReceiver(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("its bodies are large")
	}
	hanging, alike, other := newTaker("hanging", 32, "a"), newTaker("alike", 32, "b"), newTaker("other", 32, "c")
	inBubble(t, "three receivers", func(t *testing.T, d *desk) {
		defer hanging.hang("t")()
		defer alike.hang("t")()
		d.take("a/t", strings.Repeat("A", int(d.cfg.Limits.Bodies)-10_000))
		d.take("b/t", strings.Repeat("B", int(d.cfg.Limits.Bodies/2)))
		time.Sleep(2 * time.Second)
		other.mu.Lock()
		other.delay = 500 * time.Millisecond
		other.mu.Unlock()
		for n := range 20 {
			d.take(fmt.Sprint("c/t", n), strings.Repeat("C", 100))
			if n%2 == 0 {
				d.take(fmt.Sprint("c/large", n), strings.Repeat("C", maxReadAhead+1))
			}
		}
		time.Sleep(3 * time.Second) // one at a time they would take 15
		if got := len(other.got("")); got != 30 {
			t.Errorf("%d of 30 were delivered", got)
		}
	}, little, func(c *setup) { c.Receivers = receiver.NewSet(hanging.Receiver, alike.Receiver, other.Receiver) })
}

// A sender gives up while its batch is split: the decisions of the transaction that failed do not count.
func TestGivenUpWhileSplit(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		ctx, giveUp := context.WithCancel(t.Context())
		gone := make(chan struct{})
		var left atomic.Int64
		d := newDesk(t, open, between(intercepted{write: func(run func(failure error) error) error {
			if left.Add(-1) != 0 {
				return run(nil)
			}
			err := run(&engine.StatementError{Err: errors.New("a value that the database does not take")})
			giveUp()
			<-gone
			return err
		}}))
		d.take("u", "A")
		d.idle("")
		d.together(func() {
			defer close(gone)
			if a := d.add(ctx, d.hook("t", "A")); a.Err == nil {
				t.Error("it was to be given up")
			}
		}, func() { d.want("the other", d.send("u", "B"), "+") }, func() { left.Store(1) })
		d.take("t", "B")
		d.idle("")
		d.want("tried", fmt.Sprint(len(d.main.tried("t"))), "1")
		d.want("accepted", fmt.Sprint(d.main.got("t")), "[B]")
	})
}

// A receiver that refuses all webhooks of a tenant leaves very many that are parked. To take the next one in, nobody
// reads them.
func TestIntakeReadsNothingThatIsParked(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var read atomic.Int64
		d := newDesk(t, open, between(intercepted{asks: func(s *statement) error {
			read.Add(int64(number(s.name == "lane_invalid")))
			return nil
		}}))
		d.main.set("t", status(422))
		for n := range 5 {
			d.take("t", fmt.Sprint(n))
			d.idle("t")
		}
		if read.Load() > 0 {
			t.Error("what is parked was read", read.Load(), "times")
		}
		d.main.set("t", nil)
		d.take("t", "A")
		d.idle("t")
		d.want("states", d.states("t"), strings.Repeat("superseded ", 5)+"delivered")
	})
}

// A lane's row cannot be written, for a reason that does not look like the row's own. That does not fail everybody else's
// webhooks.
func TestOneRowThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	e := &refusedLane{statement: "lane_lock"}
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		e.set("bad", errors.New("could not read block 7"))
		d.want("bad", d.send("bad", "A"), "could not read block 7")
		taken := 0
		for n := range 50 {
			time.Sleep(100 * time.Millisecond)
			if d.send(fmt.Sprint("t", n), "A") == "+" {
				taken++
			}
		}
		if taken < 40 {
			t.Errorf("only %d of 50 webhooks of other tenants were taken in", taken)
		}
	}, between(intercepted{asks: e.asked}))
}
