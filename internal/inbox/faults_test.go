package inbox

import (
	"context"
	"fmt"
	"net/http"

	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
	"usher/internal/testkit/pgtest"
)

// Faults that the inbox once had: each stopped deliveries or intake, or said something untrue, because of what one
// sender, tenant or receiver did.

// fail has tenants whose names begin so get an answer from now on, and sends one webhook of each.
func (d *desk) fail(prefix string, count int, answer func(int) *http.Response) {
	for n := range count {
		d.main.set(fmt.Sprint(prefix, n), answer)
		d.take(fmt.Sprint(prefix, n), "A")
	}
}

// While a receiver catches up after it was down, only those count as not accepted that were tried since.
func TestFaultNobodyIsBlamedUntried(t *testing.T) {
	t.Parallel()
	for _, answer := range some(1, 500, 503) {
		inBubble(t, fmt.Sprint(answer), func(t *testing.T, d *desk) {
			d.places(4)
			d.fail("t", 40, status(answer))
			time.Sleep(20 * time.Second)
			if s := d.Stats().Receivers["main"]; !s.Down() {
				t.Fatalf("it is not down: %+v", s)
			}
			d.main.mu.Lock()
			d.main.delay = time.Second
			d.main.mu.Unlock()
			for n := range 40 {
				d.main.set(fmt.Sprint("t", n), nil)
			}
			d.main.set("t7", status(answer))
			for range 30 {
				time.Sleep(time.Second)
				s, held := d.Stats().Receivers["main"], d.HeldUp()
				if !s.Down() && (s.NotAccepted > 1 || len(held) > 1) {
					t.Errorf("%d of %d count as not accepted, and %d are listed", s.NotAccepted, s.Pending, len(held))
				}
			}
			d.until("in the end it is one", func() bool {
				s := d.Stats().Receivers["main"]
				return s.Pending == 1 && s.NotAccepted == 1 && len(d.HeldUp()) == 1
			})
		})
	}
}

// The clock goes back while a receiver is down. When it is back, no lane waits for longer than the longest backoff.
func TestFaultClockGoesBackWhileDown(t *testing.T) {
	t.Parallel()
	for _, back := range some(1, 9*time.Minute+50*time.Second, 5*time.Minute, 2*time.Second, time.Hour) {
		for _, answer := range some(1, 503, 500) {
			inBubble(t, fmt.Sprint(back, " with ", answer), func(t *testing.T, d *desk) {
				d.take("before", "A")
				time.Sleep(time.Second)
				d.main.set("", status(answer))
				for n := range 40 {
					d.take(fmt.Sprint("t", n), "A")
				}
				time.Sleep(time.Minute)
				d.ahead.Add(-int64(back))
				time.Sleep(20 * time.Second)
				d.main.set("", nil)
				if took := d.waitFor("t", 40, 20*time.Minute); took > 6*time.Minute {
					t.Errorf("the last one waited for %v", took)
				}
			})
		}
	}
}

// Bodies that are invalid by several replicas at once are stored once each, also if their tenant is not certain.
func TestFaultInvalidByThreeReplicas(t *testing.T) {
	costly(t)
	t.Parallel()
	open := inDatabase(t, pgtest.Schema(t))
	var all []*desk
	for range 3 {
		all = append(all, newDesk(t, open))
	}
	const rounds, bodies = 4, 20
	for round := range rounds {
		var wg sync.WaitGroup
		for n := range bodies {
			tenant := ""
			if round%2 == 0 { // in rounds of their own: the lock of a lane would hide that there is none for others
				tenant = fmt.Sprint("t", round, "-", n%8)
			}
			for _, d := range all {
				wg.Go(func() { d.recordInvalid(tenant, fmt.Sprint(round, " ", n)) })
			}
		}
		wg.Wait()
	}
	rows := must(all[0].List(context.Background(), Filter{State: state.Invalid}))(t)
	if len(rows) != rounds*bodies {
		t.Errorf("%d rows for %d bodies", len(rows), rounds*bodies)
	}
	counted := 0
	for _, tenant := range must(all[0].Tenants(context.Background(), TenantFilter{Troubled: true}))(t) {
		counted += tenant.Invalid
	}
	if counted != rounds*bodies/2 {
		t.Errorf("%d are counted in lanes", counted)
	}
}

// What goes beyond the bytes of the history goes at the pace at which it comes, and not once a minute.
func TestFaultHistoryIsBounded(t *testing.T) {
	t.Parallel()
	limit := func(bytes int64) func(*setup) {
		return func(c *setup) {
			c.Limits.FinishedBytes = bytes
		}
	}
	const size = 11_000
	inBubble(t, "at a pace", func(t *testing.T, d *desk) {
		for second := range 4 {
			for n := range 50 {
				d.take(fmt.Sprint("t", n), fmt.Sprint(second)+strings.Repeat("x", size))
				time.Sleep(time.Second / 50)
			}
			// And what comes within a quarter of a second.
			kept := must(d.List(t.Context(), Filter{State: state.Delivered}))(t)
			if bytes := len(kept) * size; bytes > 11<<17 {
				t.Fatalf("%d bytes are kept after %d s", bytes, second+1)
			}
		}
	}, limit(8<<17))
	t.Run("engines", func(t *testing.T) {
		onEngines(t, func(t *testing.T, open func() engine.Engine) {
			d := newDesk(t, open, limit(2<<17))
			d.until("open", d.Ready)
			time.Sleep(1100 * time.Millisecond) // it has looked once at its start
			for n := range 60 {
				d.take(fmt.Sprint("t", n), fmt.Sprint(n)+strings.Repeat("x", size))
			}
			d.until("deleted", func() bool {
				kept := must(d.List(t.Context(), Filter{State: state.Delivered}))(t)
				return d.Stats().Pending == 0 && len(kept)*size < 5<<16
			})
		})
	})
}

// A database that hangs keeps nobody waiting who wants figures that are at hand: once two seconds, then not at all.
func TestFaultFiguresOfADatabaseThatHangs(t *testing.T) {
	var mute atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		check(t, d.Pause(Pause{}))
		d.take("a", "A")
		time.Sleep(2 * time.Second)
		d.Stats()
		mute.Store(true)
		time.Sleep(5 * time.Second)
		waited := time.Duration(0)
		for range 60 {
			began := time.Now()
			s := d.Stats()
			d.HeldUp()
			took := time.Since(began)
			if waited += took; took > 2*countPatience || !s.Old || s.Pending != 1 {
				t.Fatalf("after %v: %+v", took, s)
			}
			time.Sleep(time.Second)
		}
		// A count gives up after five seconds, and the next one begins five later: at most eight in this minute and
		// what was waited in it.
		if waited > 8*countPatience {
			t.Errorf("they waited for %v", waited)
		}
		mute.Store(false)
		time.Sleep(10 * time.Second)
		if s := d.Stats(); s.Old || s.Pending != 1 {
			t.Errorf("after it: %+v", s)
		}
	}, between(unanswered(&mute)))
}

// A usher that stood still for an hour while it counted does not show the old figures for another hour.
func TestFaultFiguresAfterAStandstill(t *testing.T) {
	var still atomic.Int64 // for how long the process stands still in the next read, which has failed when it goes on
	stands := intercepted{read: func(ctx context.Context, run func() error) error {
		if d := still.Swap(0); d > 0 {
			time.Sleep(time.Duration(d))
			return ctx.Err()
		}
		return run()
	}}
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		check(t, d.Pause(Pause{}))
		d.take("a", "A")
		d.Stats()
		still.Store(int64(time.Hour))
		d.changed()
		if _, err := d.count(t.Context()); err != errCounting {
			t.Fatalf("the count: %v", err)
		}
		time.Sleep(time.Hour)
		d.take("b", "B")
		time.Sleep(countLimit)
		if s := d.Stats(); s.Old || s.Pending != 2 {
			t.Errorf("after it: %+v", s)
		}
	}, between(stands))
}

// A disk that is full for a minute is one outage, with one line at its begin and one at its end, whatever could be
// written meanwhile.
func TestFaultFullDiskIsOneOutage(t *testing.T) {
	var full atomic.Pointer[engine.FullError]
	count := 0 // every other transaction still fits, as a small outcome does
	crammed := intercepted{full: full.Load, write: func(run func(failure error) error) error {
		if full := full.Load(); full != nil {
			if count++; count%2 == 1 {
				return full
			}
		}
		return run(nil)
	}}
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		begins := func() int { return strings.Count(d.log.String(), "cannot write to the inbox") }
		ends := func() int { return strings.Count(d.log.String(), "can be written again") }
		for n := 1; n <= 2; n++ {
			full.Store(&engine.FullError{Of: "it", Since: time.Now()})
			time.Sleep(time.Minute)
			if begins() != n || ends() != n-1 {
				t.Fatalf("outage %d begins %d times", n, begins())
			}
			full.Store(nil)
			time.Sleep(2 * time.Second)
			if h := d.Health(); h.Err != nil || ends() != n {
				t.Errorf("outage %d has no end: %v", n, h.Err)
			}
		}
		if strings.Count(d.log.String(), "after=1m")+strings.Count(d.log.String(), "after=59s") != 2 {
			t.Errorf("they lasted for a minute each, and it says:\n%s", d.log.String())
		}
	}, between(crammed))
}

// What cannot be known in an outage keeps its last value, and says how old it is.
func TestFaultFiguresInAnOutage(t *testing.T) {
	var gone atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		if s := d.Stats(); s.Paused == nil {
			t.Error("no pauses are not the same as unknown ones")
		}
		d.main.set("parked", status(422))
		d.take("parked", "A")
		time.Sleep(time.Second)
		check(t, d.Pause(Pause{}))
		check(t, d.Pause(Pause{Tenant: "a"}))
		d.take("a", "A", "B")
		d.recordInvalid("", "odd")
		time.Sleep(3 * time.Second)
		counts := func(s Stats) string {
			return fmt.Sprintf("%d wait, %d parked, %d invalid, %d pauses",
				s.Pending, s.Parked, s.Invalid, len(s.Paused))
		}
		const all = "2 wait, 1 parked, 1 invalid, 2 pauses"
		before := d.Stats()
		if counts(before) != all || before.Old || time.Since(before.At) > 2*time.Second {
			t.Fatalf("%+v", before)
		}
		gone.Store(true)
		time.Sleep(time.Minute)
		now := d.Stats()
		same := now.Used == before.Used && now.Tenants == before.Tenants
		if counts(now) != all || !same || now.Receivers["main"].Pending != 2 {
			t.Errorf("in an outage: %+v", now)
		}
		if age := time.Since(now.At); !now.Old || age < 58*time.Second || age > 63*time.Second {
			t.Errorf("it does not say that its figures are of %v ago: %v", age, now.Old)
		}
		if now.Oldest < before.Oldest+59*time.Second {
			t.Errorf("the oldest was %v old, and now %v", before.Oldest, now.Oldest)
		}
		gone.Store(false)
		time.Sleep(10 * time.Second)
		if now := d.Stats(); now.Old || time.Since(now.At) > 3*time.Second || now.Pending != 2 {
			t.Errorf("after it: %+v", now)
		}
		gone.Store(true)
		d.restart()
		time.Sleep(10 * time.Second)
		if now := d.Stats(); now.Paused != nil || !now.At.IsZero() || !now.Old {
			t.Errorf("nothing is known yet: %+v", now)
		}
		gone.Store(false)
		time.Sleep(10 * time.Second)
		if now := d.Stats(); len(now.Paused) != 2 || now.Pending != 2 {
			t.Errorf("when it is back: %+v", now)
		}
	}, between(away(&gone)))
}
