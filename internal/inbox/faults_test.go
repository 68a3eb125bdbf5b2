package inbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

// Faults that the inbox once had: each stopped deliveries or intake, or said something untrue, because of what one sender, tenant or
// receiver did.

// tally is an engine that counts transactions, and what statements return.
type tally struct {
	engine.Engine
	mu           sync.Mutex
	transactions int // that write
	calls, rows  map[string]int
	most         map[string]int // rows of one call
}

func newTally(e engine.Engine) *tally {
	return &tally{Engine: e, calls: make(map[string]int), rows: make(map[string]int), most: make(map[string]int)}
}

// reset forgets what was counted.
func (e *tally) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.transactions = 0
	clear(e.calls)
	clear(e.rows)
	clear(e.most)
}

// sum is how many rows statements returned, and how many statements ran.
func (e *tally) sum() (calls, rows int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.calls {
		calls, rows = calls+e.calls[name], rows+e.rows[name]
	}
	return calls, rows
}

// largest is the statement of which one call returned most rows, and how many.
func (e *tally) largest() (name string, rows int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n, most := range e.most {
		if most > rows {
			name, rows = n, most
		}
	}
	return name, rows
}

func (e *tally) written() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.transactions
}

func (e *tally) Write(fn func(engine.Tx) error) error {
	e.mu.Lock()
	e.transactions++
	e.mu.Unlock()
	return e.Engine.Write(func(tx engine.Tx) error { return fn(&tallyTx{tx, e}) })
}

func (e *tally) Read(ctx context.Context, fn func(engine.Tx) error) error {
	return e.Engine.Read(ctx, func(tx engine.Tx) error { return fn(&tallyTx{tx, e}) })
}

type tallyTx struct {
	engine.Tx
	e *tally
}

func (t *tallyTx) Queue(name string, each func(engine.Row) error, args ...any) {
	t.e.mu.Lock()
	t.e.calls[name]++
	t.e.mu.Unlock()
	rows := 0
	counted := func(r engine.Row) error {
		t.e.mu.Lock()
		rows++
		t.e.rows[name]++
		t.e.most[name] = max(t.e.most[name], rows)
		t.e.mu.Unlock()
		return each(r)
	}
	if each == nil {
		counted = nil
	}
	t.Tx.Queue(name, counted, args...)
}

// upTo returns the first few of all, and with -long all.
func upTo[T any](few int, all ...T) []T {
	if *long {
		return all
	}
	return all[:few]
}

// crowd runs f for each number below count, by many goroutines at once.
func crowd(count int, f func(n int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(count, 128) {
		wg.Go(func() {
			for n := int(next.Add(1)) - 1; n < count; n = int(next.Add(1)) - 1 {
				f(n)
			}
		})
	}
	wg.Wait()
}

// tableReads is how many rows of a table, or entries of its indexes, the server has read, by the count of ended connections.
func tableReads(t *testing.T, dsn, table string) int {
	t.Helper()
	return must2(strconv.Atoi(inSchema(t, dsn, "SELECT (max(t.seq_tup_read) + sum(i.idx_tup_read))::bigint::text FROM pg_stat_user_tables t JOIN pg_stat_user_indexes i USING (relid) WHERE t.schemaname = '{schema}' AND t.relname = '"+table+"'")))(t)
}

// waitFor waits until the bubble's receiver has accepted this many of the tenants whose names begin so, and returns how long that took.
func (d *desk) waitFor(prefix string, count int, most time.Duration) time.Duration {
	d.t.Helper()
	began := time.Now()
	for {
		got := 0
		for _, one := range d.main.got("") {
			got += number(strings.HasPrefix(one, prefix))
		}
		if got >= count {
			return time.Since(began)
		}
		if time.Since(began) > most {
			d.t.Fatalf("only %d of %d %s… were accepted within %v", got, count, prefix, most)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// places gives the desk's receiver so many places.
func (d *desk) places(n int) {
	d.courier.mu.Lock() // it looks at them all the time
	defer d.courier.mu.Unlock()
	d.main.Concurrency = n
}

// fail has tenants whose names begin so get an answer from now on, and sends one webhook of each.
func (d *desk) fail(prefix string, count int, answer func(int) *http.Response) {
	for n := range count {
		d.main.set(fmt.Sprint(prefix, n), answer)
		d.take(fmt.Sprint(prefix, n), "A")
	}
}

// 40 tenants answer 503, the receiver counts as down, and others come that it would accept. They do not wait until each of the 40 was
// tried.
func TestFaultHealthyBehindUntested(t *testing.T) {
	for _, places := range upTo(1, 32, 4, 1) {
		for _, goodFirst := range []bool{false, true} {
			inBubble(t, fmt.Sprint(places, " places, good first ", goodFirst), func(t *testing.T, d *desk) {
				d.places(places)
				d.fail("down", 12, status(503))
				time.Sleep(30 * time.Second)
				if !d.Stats().Receivers["main"].Down {
					t.Fatal("it does not count as down")
				}
				good := func() {
					for n := range 25 {
						d.take(fmt.Sprint("good", n), "A")
					}
				}
				if goodFirst {
					good()
				}
				d.fail("bad", 40, status(503))
				if !goodFirst {
					good()
				}
				if took := d.waitFor("good", 25, time.Minute); took > 5*time.Second {
					t.Errorf("they waited for %v", took)
				}
			})
		}
	}
}

// A receiver that answers 500 to everything is broken, and not the webhooks: nothing is parked by attempts, and all go soon when it is
// back.
func TestFaultBlanketError(t *testing.T) {
	four := func(c *Config) { c.MaxAttempts = 4 } // within seven seconds
	hour := time.Minute
	if *long {
		hour = time.Hour
	}
	for _, code := range upTo(1, 500, 401, 404, 429) {
		inBubble(t, fmt.Sprint("for long ", code), func(t *testing.T, d *desk) {
			d.take("before", "A") // it has accepted something
			time.Sleep(time.Second)
			d.main.set("", status(code))
			for n := range 30 {
				d.take(fmt.Sprint("t", n), "A")
			}
			time.Sleep(hour / 2)
			d.take("late", "A")
			time.Sleep(hour / 2)
			for _, e := range d.list("") {
				if e.State != Waiting && e.Tenant != "before" {
					t.Errorf("%s is %s after %d tries, of which %d count: %s", e.Tenant, e.State, e.Tries, e.Counted, e.Why)
				}
			}
			if r := d.Stats().Receivers["main"]; !r.FailsForEverybody {
				t.Errorf("nobody says so: %+v", r)
			}
			d.main.set("", nil)
			if took := d.waitFor("t", 30, time.Minute); took > 10*time.Second { // it is probed each five seconds
				t.Errorf("they waited for %v", took)
			}
		}, four)
	}
	inBubble(t, "from the start", func(t *testing.T, d *desk) {
		d.main.set("", status(500))
		for n := range 5 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Minute)
		d.restart()
		time.Sleep(hour)
		d.want("states", d.states(""), "waiting waiting waiting waiting waiting")
	}, four)
	inBubble(t, "what parks at once still does", func(t *testing.T, d *desk) {
		d.main.set("", status(500))
		for n := range 5 {
			d.take(fmt.Sprint("t", n), "A")
		}
		d.main.set("odd", status(422))
		time.Sleep(time.Minute)
		d.take("odd", "A")
		time.Sleep(10 * time.Second)
		d.want("states", d.states("odd"), "parked")
	}, four)
	inBubble(t, "five tenants at fault themselves", func(t *testing.T, d *desk) {
		d.take("well", "A")
		time.Sleep(time.Millisecond)
		d.fail("bad", 5, status(500))
		for n := range 120 { // the others' are accepted
			d.take(fmt.Sprint("well", n%10), fmt.Sprint(n))
			time.Sleep(time.Second)
		}
		for n := range 5 {
			if e := d.list(fmt.Sprint("bad", n))[0]; e.State != Parked {
				t.Errorf("%s is %s after %d tries, of which %d count", e.Tenant, e.State, e.Tries, e.Counted)
			}
		}
	}, four)
	inBubble(t, "five tenants at fault themselves, others come seldom", func(t *testing.T, d *desk) {
		d.take("well", "A")
		time.Sleep(time.Millisecond)
		d.fail("bad", 5, status(500))
		for n := range 6 {
			time.Sleep(20 * time.Second)
			d.take("well", fmt.Sprint(n))
		}
		for n := range 5 {
			if e := d.list(fmt.Sprint("bad", n))[0]; e.State != Parked {
				t.Errorf("%s is %s after %d tries, of which %d count", e.Tenant, e.State, e.Tries, e.Counted)
			}
		}
	}, func(c *Config) { c.MaxAttempts = 2 })
	inBubble(t, "one tenant that hangs in a quiet night", func(t *testing.T, d *desk) {
		d.take("well", "A")
		time.Sleep(time.Second)
		defer d.main.hang("ill")()
		d.take("ill", "A")
		for range int(hour / time.Second) {
			time.Sleep(time.Second)
			if r := d.Stats().Receivers["main"]; r.Down || r.FailsForEverybody {
				t.Fatalf("it counts as down: %+v", r)
			}
		}
		began := time.Now()
		d.take("new", "A")
		for len(d.main.got("new")) == 0 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("another tenant waited for %v", took)
		}
	})
	for _, code := range []int{500, 503} {
		inBubble(t, fmt.Sprint("300 tenants after a minute of ", code), func(t *testing.T, d *desk) {
			d.take("before", "A")
			time.Sleep(time.Second)
			d.main.set("", status(code))
			d.main.delay = 5 * time.Millisecond
			for n := range 300 {
				d.take(fmt.Sprint("t", n), "A")
				time.Sleep(time.Minute / 300)
			}
			d.main.set("", nil)
			took := d.waitFor("t", 300, 2*time.Minute)
			tries := len(d.main.tried(""))
			t.Logf("%v, %d tries in all", took, tries)
			if took > 5*time.Second || tries > 1200 {
				t.Errorf("it took %v and %d tries", took, tries)
			}
		})
	}
}

// The clock goes back while a receiver is down. When it is back, every lane is tried soon.
func TestFaultClockGoesBackWhileDown(t *testing.T) {
	for _, back := range upTo(2, 5*time.Minute, 9*time.Minute+50*time.Second, 2*time.Second, time.Hour) {
		for _, answer := range upTo(1, 503, 500) {
			var ahead atomic.Int64
			inBubble(t, fmt.Sprint(back, " with ", answer), func(t *testing.T, d *desk) {
				d.take("before", "A")
				time.Sleep(time.Second)
				d.main.set("", status(answer))
				for n := range 40 {
					d.take(fmt.Sprint("t", n), "A")
				}
				time.Sleep(time.Minute)
				ahead.Add(-int64(back))
				time.Sleep(10 * time.Second)
				before := len(d.main.tried(""))
				time.Sleep(10 * time.Second)
				if n := len(d.main.tried("")) - before; n < 8 {
					t.Errorf("only %d probes in ten seconds", n)
				}
				d.main.set("", nil)
				if took := d.waitFor("t", 40, 20*time.Minute); took > 5*time.Second {
					t.Errorf("the last one waited for %v", took)
				}
			}, func(c *Config) {
				c.ClockOffset = func() time.Duration { return time.Duration(ahead.Load()) }
			})
		}
	}
}

var _ = []any{errors.New, url.Parse, runtime.GC, slices.Sort[[]int], pgtest.New, webhookgate.ErrFull, content.Fault{}}
