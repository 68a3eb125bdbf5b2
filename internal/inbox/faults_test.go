package inbox

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// Faults that the inbox once had: each stopped deliveries or intake, or said something untrue, because of what one
// sender, tenant or receiver did.

// serverAlone is for a test that counts what the server reads. While any transaction is open in the same database,
// also one of another test, rows that were updated since count, too, because that one might still see them.
func serverAlone(t *testing.T) (dsn string) {
	return pgtest.New(t, "autovacuum=off").DSN() + "&schema=usher"
}

// tableReads is how many rows of a table, or entries of its indexes, the server has read, by the count of ended
// connections. What looks at the history counts as nothing: it does so ten times a second, however long a delivery
// takes.
func tableReads(t *testing.T, dsn, table string) int {
	t.Helper()
	return must(strconv.Atoi(inSchema(t, dsn, `SELECT (max(t.seq_tup_read) + sum(i.idx_tup_read))::bigint::text
		FROM pg_stat_user_tables t JOIN pg_stat_user_indexes i USING (relid)
		WHERE t.schemaname = '{schema}' AND t.relname = '`+table+`' AND i.indexrelname <> 'webhook_finished'`)))(t)
}

// fail has tenants whose names begin so get an answer from now on, and sends one webhook of each.
func (d *desk) fail(prefix string, count int, answer func(int) *http.Response) {
	for n := range count {
		d.main.set(fmt.Sprint(prefix, n), answer)
		d.take(fmt.Sprint(prefix, n), "A")
	}
}

// Many tenants answer 503, the receiver counts as down, and others come that it would accept. They do not wait until
// each of the former was tried, which takes 15 s.
func TestFaultHealthyBehindUntested(t *testing.T) {
	t.Parallel()
	for _, places := range some(1, 32, 4, 1) {
		for _, goodFirst := range some(1, false, true) {
			inBubble(t, fmt.Sprint(places, " places, good first ", goodFirst), func(t *testing.T, d *desk) {
				d.places(places)
				d.fail("down", 12, status(503))
				time.Sleep(30 * time.Second)
				if !d.trickles("main") {
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
				time.Sleep(time.Millisecond)
				d.fail("bad", 150, status(503))
				if !goodFirst {
					good()
				}
				most := 2 * time.Second
				if !goodFirst {
					most = 16 * time.Second // ten of the others each second
				}
				if took := d.waitFor("good", 25, time.Minute); took > most {
					t.Errorf("they waited for %v", took)
				}
			})
		}
	}
}

// A receiver that answers 500 to everything is broken, and not the webhooks: nothing is parked by tries, and all go
// soon when it is back.
func TestFaultBlanketError(t *testing.T) {
	t.Parallel()
	four := func(c *setup) { c.MaxTries = 4 } // within seven seconds
	hour := time.Minute
	if *long {
		hour = time.Hour
	}
	for _, code := range some(1, 500, 401, 404, 429) {
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
				if e.State != state.Waiting && e.Tenant != "before" {
					t.Errorf("%s is %s after %d tries, of which %d count: %s",
						e.Tenant, e.State, e.Tries, e.Counted, e.Why)
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
		costly(t)
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
			if e := d.list(fmt.Sprint("bad", n))[0]; e.State != state.Parked {
				t.Errorf("%s is %s after %d tries, of which %d count", e.Tenant, e.State, e.Tries, e.Counted)
			}
		}
	}, four)
	inBubble(t, "five tenants at fault themselves, others come seldom", func(t *testing.T, d *desk) {
		costly(t)
		d.take("well", "A")
		time.Sleep(time.Millisecond)
		d.fail("bad", 5, status(500))
		for n := range 30 { // until each was tried twice since, and each was probed as often as chance has it
			time.Sleep(20 * time.Second)
			d.take("well", fmt.Sprint(n))
		}
		for n := range 5 {
			if e := d.list(fmt.Sprint("bad", n))[0]; e.State != state.Parked {
				t.Errorf("%s is %s after %d tries, of which %d count", e.Tenant, e.State, e.Tries, e.Counted)
			}
		}
	}, func(c *setup) { c.MaxTries = 2 })
	inBubble(t, "one tenant that hangs in a quiet night", func(t *testing.T, d *desk) {
		d.take("well", "A")
		time.Sleep(time.Second)
		defer d.main.hang("ill")()
		d.take("ill", "A")
		for range int(hour / time.Second) {
			time.Sleep(time.Second)
			if r := d.Stats().Receivers["main"]; r.FailsForEverybody {
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
	inBubble(t, "a try that began before it was back", func(t *testing.T, d *desk) {
		costly(t)
		d.take("before", "A")
		time.Sleep(time.Second)
		d.main.set("", status(500))
		for n := range 5 {
			d.take(fmt.Sprint("t", n), "A")
		}
		d.take("slow", "A")
		time.Sleep(time.Minute)
		tried, release := len(d.main.tried("slow")), d.main.hang("slow")
		for len(d.main.tried("slow")) == tried {
			time.Sleep(time.Millisecond)
		}
		d.main.set("", nil)
		d.waitFor("t", 5, 5*time.Second)
		release() // now it gets its 500
		if took := d.waitFor("slow", 1, time.Minute); took > 3*time.Second {
			t.Errorf("it waited for %v", took)
		}
	})
	for _, code := range some(0, 500, 503) {
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
			if s := d.Stats().Receivers["main"]; s.Pending != 1 || s.NotAccepted != 1 || len(d.HeldUp()) != 1 {
				t.Errorf("in the end: %+v", s)
			}
		})
	}
}

// The clock goes back while a receiver is down. When it is back, every lane is tried soon.
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
			})
		}
	}
}

// However many platforms there are, a webhook and an idle second cost the same: no question asks for all of them.
func TestFaultManyPlatforms(t *testing.T) {
	t.Parallel()
	many := 200
	if *long {
		many = 5000
	}
	e := newTally()
	inBubble(t, "file", func(t *testing.T, d *desk) {
		cost := func(name string, f func()) (both [2]int) {
			e.reset()
			f()
			both[0], both[1] = e.sum()
			if which, rows := e.largest(); rows > 40 {
				t.Errorf("%s: %s returned %d rows at once", name, which, rows)
			}
			return both
		}
		measure := func(name string) (all [2][2]int) {
			all[0] = cost("webhooks", func() {
				for n := range 20 {
					d.take(fmt.Sprintf("%s%d/t", name, n), "A")
					time.Sleep(time.Millisecond)
				}
			})
			time.Sleep(2 * time.Second)
			all[1] = cost("idle", func() { time.Sleep(20 * time.Second) })
			return all
		}
		few := measure("few")
		for n := range many {
			d.take(fmt.Sprintf("p%d/t", n), "A")
		}
		time.Sleep(10 * time.Second)
		now := measure("many")
		for i := range few {
			if now[i][0] > few[i][0]+10 || now[i][1] > few[i][1]+10 { // the first few have no namesakes yet
				t.Errorf("with few platforms: %v statements and rows, with %d: %v", few, many, now)
			}
		}
		check(t, d.Pause(Pause{}))
		for n := range many {
			d.take(fmt.Sprintf("p%d/t", n), "B")
		}
		time.Sleep(10 * time.Second)
		cost("while all wait", func() { time.Sleep(20 * time.Second) })
		d.restart()
		time.Sleep(time.Second)
		cost("after a restart", func() { time.Sleep(20 * time.Second) })
		must(d.Resume(Pause{}))(t)
		d.waitFor("t:B", many, time.Minute)
	}, between(e.counts()))
	t.Run("database", func(t *testing.T) {
		costly(t)
		t.Parallel()
		many := max(many, 600) // a table of few pages is read as a whole
		dsn := serverAlone(t)
		d := newDesk(t, inDatabase(t, dsn))
		reads := func(count int, name string) int {
			before, delivered := tableReads(t, dsn, "lane"), len(d.main.got(""))
			d.start()
			for n := range count {
				d.take(fmt.Sprintf("%s%d/t", name, n), "A")
			}
			// Figures would read all lanes.
			d.until("delivered", func() bool { return len(d.main.got("")) == delivered+count })
			time.Sleep(1500 * time.Millisecond) // it looks for work
			d.shut()
			after := before
			d.until("counted", func() bool { after = tableReads(t, dsn, "lane"); return after > before+count })
			return (after - before) / count
		}
		d.shut()
		few := reads(50, "few")
		d.start()
		crowd(100, many, func(n int) { d.want("taken in", d.send(fmt.Sprintf("p%d/t", n), "A"), "+") })
		d.until("delivered", func() bool { // what is cut off would come again
			s := d.Stats()
			return s.Pending == 0 && !s.Old
		})
		d.shut()
		inSchema(t, dsn, "VACUUM {schema}.lane") // former versions of rows are read, too
		// The server says what a connection has read when that ends, or once in a second.
		time.Sleep(1100 * time.Millisecond)
		// One look at all of them makes 13 more.
		if now := reads(50, "many"); now > few+8 {
			t.Errorf("%d rows of lanes were read for each webhook, and with few platforms %d", now, few)
		}
	})
}

// Invalid webhooks with huge codes for platforms are no more than rows: they change nothing for the others.
func TestFaultHugeCodesOfPlatforms(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		gate := webhookgate.New(webhookgate.Config{
			Path:        "/",
			Rules:       must(content.NewRules([]string{content.TenantProvisioningChange}, nil))(t),
			MaxBody:     4 << 20,
			MaxInflight: 100,
			Receivers:   d.cfg.Receivers,
			Store:       d.Store,
			Invalid:     d.RecordInvalid,
			Log:         d.cfg.Log,
		})
		const count = 5
		for n := range count {
			body := snapshotOf(fmt.Sprint(strings.Repeat("p", 950_000+n), "/t", n))
			r := httptest.NewRequest("POST", "/", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			if gate.ServeHTTP(w, r); w.Code != 422 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		d.take("t0", "A")
		d.idle("t0")
		d.restart()
		d.want("a snapshot", fmt.Sprint(len(must(d.Snapshots(t.Context(), "t0"))(t))), "1")
		d.until("counted", func() bool { return d.Stats().Invalid == count })
		for _, e := range must(d.List(context.Background(), Filter{State: state.Invalid}))(t) {
			if e.Platform != "" || e.Tenant != "" {
				t.Fatalf("%.20s/%.20s", e.Platform, e.Tenant)
			}
		}
	})
}

// longLane is how many webhooks are more than a few steps, and limits that keep all of them.
func longLane() (count int, limits func(*setup)) {
	count, step := 170, 50
	if *long {
		count, step = 9_000, DefaultLimits.Step // figures follow at once up to 10,000 rows
	}
	return count, func(c *setup) { c.Limits.Finished, c.Limits.Step = 100_000, step }
}

// Very many webhooks of one tenant are invalid by the receiver, and a newer one is accepted.
func TestFaultParkedOfOneTenant(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		backlog, limits := longLane()
		d := newDesk(t, open, limits)
		d.main.set("big", status(422))
		crowd(100, backlog, func(n int) { d.want("taken in", d.send("big", fmt.Sprint(n)), "+") })
		d.until("parked", func() bool { return d.Stats().Parked == 1 && d.Stats().Pending == 0 })
		d.main.set("big", nil)
		d.take("big", "newest")
		d.until("accepted", func() bool { return len(d.main.got("big")) == 1 })
		d.until("none counts as parked", func() bool { return d.Stats().Parked == 0 && d.Stats().Used == 0 })
	})
}

// One event of another type is parked in a lane of very many that wait. A delivery does not look at all of these.
func TestFaultParkedEventInALongLane(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := serverAlone(t)
	const many = 100
	d := newDesk(t, inDatabase(t, dsn))
	drain := func(tenant string) int {
		check(t, d.Pause(Pause{Tenant: tenant}))
		crowd(100, many, func(n int) { d.want("taken in", d.send(tenant, fmt.Sprint(n)), "+") })
		d.shut()
		// The server says what a connection has read when that ends, or once in a second.
		time.Sleep(1100 * time.Millisecond)
		before := tableReads(t, dsn, "webhook")
		d.start()
		must(d.Resume(Pause{Tenant: tenant}))(t)
		d.until("delivered", func() bool { return len(d.main.got(tenant)) == many })
		d.shut()
		after := before
		d.until("counted", func() bool { after = tableReads(t, dsn, "webhook"); return after > before+many })
		d.start()
		return (after - before) / many
	}
	alone := drain("alone")
	d.main.set("big", status(422))
	d.want("an event", d.sendHook(d.event("big", "event")), "+")
	d.becomes("big", "parked")
	d.main.set("big", nil)
	if with := drain("big"); with > 2*alone+20 {
		t.Errorf("%d rows were read for each delivery, and without a parked event %d", with, alone)
	}
}

// A statement that is cancelled because it takes too long is the fault of that work, and no outage of the database.
func TestFaultCancelledStatement(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	d.take("locked", "A")
	d.idle("")
	tx := another(t, dsn, "SELECT 1 FROM lane WHERE tenant = 'locked' FOR UPDATE")
	const cancel = `SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity
		WHERE %d = ANY (pg_blocking_pids(pid))`
	// On a slow machine the statement may give up waiting for the lock first: then once more.
	d.until("cancelled", func() bool {
		got := make(chan string, 1)
		go func() { got <- d.send("locked", "B") }()
		for {
			select {
			case answer := <-got:
				return strings.Contains(answer, "57014")
			default:
				inSchema(t, dsn, fmt.Sprintf(cancel, tx.pid))
			}
		}
	})
	d.take("other", "A")
	if strings.Contains(d.log.String(), "cannot write to the inbox") {
		t.Error("it counts as an outage")
	}
	check(t, tx.Rollback(t.Context()))
	d.until("taken in", func() bool { return d.send("locked", "B") == "+" })
	d.idle("")
}

// Invalid share transactions, as intakes do.
func TestFaultInvalidShareTransactions(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		e, h := newTally(), newHeld()
		counted := func() engine.Engine { return e.counts().on(open()) }
		d := newDesk(t, counted, between(intercepted{write: h.write}))
		d.take("t", "A")
		d.idle("")
		h.hold()
		e.reset()
		var wg sync.WaitGroup
		wg.Go(func() { d.send("the-first", "A") })
		d.until("the writer waits", func() bool { return h.waiting.Load() > 0 })
		for n := range 200 {
			wg.Go(func() { d.recordInvalid([]string{"", "t", fmt.Sprint("t", n%50)}[n%3], fmt.Sprint(n)) })
		}
		wg.Go(func() { d.send("well", "A") })
		d.until("all are queued", func() bool { return len(d.works) >= 200 }) // the writer may have taken one
		h.goOn()
		wg.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		if n := e.transactions; n > 12 { // some of these look for work, or write outcomes
			t.Errorf("%d transactions", n)
		}
	})
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
