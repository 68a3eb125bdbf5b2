package inbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/testkit/pgtest"
)

// A transaction that runs again says once what it has done.
func TestSaysItOnce(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		var beats atomic.Int64 // the one before has ended
		d := newDesk(t, open, between(intercepted{write: func(run func(failure error) error) error {
			_ = run(errors.New("a deadlock"))
			return run(nil)
		}}), func(c *setup) {
			c.GateUp = func() bool { beats.Add(1); return true }
		})
		for n := range 2 {
			d.RecordInvalid(context.Background(), d.invalid("t", fmt.Sprint("odd", n)))
			w := d.hook("u", fmt.Sprint(n))
			check(t, d.add(t.Context(), w))
		}
		d.until("up", func() bool { return beats.Load() > 1 })
		d.shut()
		d.ahead.Add(int64(time.Hour))
		d.start()
		d.until("an outage", func() bool { return !d.Stats().Missed.From.IsZero() })
		for _, says := range []string{"no gate was ready"} {
			d.want(says, fmt.Sprint(strings.Count(d.log.String(), says)), "1")
		}
	})
}

// A sender that got 503 sends its next webhook through another replica. The webhook that it gave up must not be taken
// in after that, also if the transaction runs again.
func TestGivenUpMeanwhile(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		ctx, giveUp := context.WithCancel(t.Context())
		gone := make(chan struct{})
		var armed atomic.Bool
		d := newDesk(t, open, between(intercepted{write: func(run func(failure error) error) error {
			if armed.Swap(false) {
				_ = run(errors.New("the connection broke"))
				giveUp()
				<-gone
			}
			return run(nil)
		}}))
		d.take("t", "first")
		d.idle("t")
		armed.Store(true)
		if d.add(ctx, d.hook("t", "A")) == nil {
			t.Fatal("it was to be given up")
		}
		close(gone)
		d.take("t", "B") // the writer has both in order
		d.idle("t")
		d.want("accepted", fmt.Sprint(d.main.got("t")), "[first B]")
	})
}

// A jump of the clock does not end a lease: its holder may still be delivering.
func TestClockJumpsWhileUnderWay(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		playAll(t, d, "", []story{
			{"a newer one comes", "hang A+ underway +1h B+ release idle", "A B", "delivered delivered"},
			{"back", "hang A+ underway -3h B+ release idle", "A B", "delivered delivered"},
		})
	})
}

// A commit that no standby has confirmed is in doubt, whatever the server's language is, and also for a role that has
// switched warnings off.
func TestWarningInAnotherLanguage(t *testing.T) {
	costly(t)
	t.Setenv("LANGUAGE", "de")
	server := pgtest.New(t, "lc_messages=C.UTF-8", "client_min_messages=error")
	standby := server.Standby(t)
	d := newDesk(t, inDatabase(t, server.DSN()))
	d.take("t", "first")
	d.idle("t")
	standby.Pause()
	defer standby.Resume()
	answer := make(chan error, 1)
	go func() { answer <- d.add(t.Context(), d.hook("t", "A")) }()
	d.until("a commit waits for the standby", func() bool {
		return server.Exec(t, `SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND query LIKE 'COMMIT%'`) != "0"
	})
	d.until("it can be seen", func() bool { return d.states("t") != "delivered" })
	if <-answer == nil {
		t.Error("it was answered 200, though no standby has it")
	}
}

// If the clock is set back, also while usher does not run, webhooks do not wait until it has caught up.
func TestAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer  func(int) *http.Response
		back    time.Duration
		restart bool
	}{
		"failing":          {status(500), time.Hour, false},
		"failing, restart": {status(500), 1000 * time.Hour, true},
		"down, restart":    {unreachable, time.Hour, true},
		"told to wait":     {status(503, "Retry-After", "3000"), 1000 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, open func() engine.Engine) {
				d := newDesk(t, open, func(c *setup) {
					c.ahead.Store(int64(tc.back))
					c.Jitter = func(time.Duration) time.Duration { return 4 * time.Minute }
				})
				d.main.set("", tc.answer)
				d.take("acme", "one")
				d.until("tried", func() bool { return d.list("acme")[0].Tries == 1 })
				if tc.restart {
					d.shut()
				}
				d.ahead.Store(0)
				d.main.set("", nil)
				if tc.restart {
					d.start()
				}
				d.idle("acme")
			})
		})
	}
}

// A replica dies, and the database's clock is set back, as by a failover: the webhook that it was delivering does not
// wait until the clock has caught up with the end of its lease.
func TestClockGoesBackAfterADeath(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	wire := pgtest.Cut(t, must(url.Parse(dsn))(t).Host)
	lease := func(c *setup) { c.LeaseExtra = 2 * time.Second }
	b := newDesk(t, inDatabase(t, dsn), lease)
	b.ahead.Store(int64(5 * time.Minute))
	a := newDesk(t, inDatabase(t, wire.Through(dsn)), lease, func(c *setup) {
		c.Receivers = b.cfg.Receivers
		c.ahead.Store(int64(5 * time.Minute))
	})
	b.take("u", "A")
	release := b.main.hang("t")
	defer release()
	a.take("t", "A")
	b.untilTried("t", 1)
	wire.Refuse()
	a.shut()
	release()
	b.ahead.Store(0)
	b.idle("t")
}

// The first transaction after a jump of the clock is an intake of another replica. It does not take the lane from the
// one that is delivering.
func TestClockJumpsBeforeAnIntake(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	// It ends between two of the writer's ticks, which would notice the jump, too.
	lease := func(c *setup) { c.LeaseExtra = 4500 * time.Millisecond }
	one := newDesk(t, inDatabase(t, dsn), lease)
	two := newDesk(t, inDatabase(t, dsn), lease, func(c *setup) { c.Receivers, c.ahead = one.cfg.Receivers, one.ahead })
	two.until("leases may be taken over", func() bool { return two.Ready() && two.clock.mayTakeOver(two.cfg.LongestLease()) })
	release := one.main.hang("t")
	one.take("t", "A")
	one.untilTried("t", 1)
	one.ahead.Add(int64(time.Hour))
	two.take("t", "B")
	one.want("leases", inSchema(t, dsn, "SELECT token || ' ' || (owner <> '')::text FROM {schema}.lane"), "1 true")
	release()
	one.idle("t")
	one.want("accepted", fmt.Sprint(one.main.got("t")), "[A B]")
}

// A reading that took long is no jump of the clock. After a jump, and after the first reading, which may have come right
// after one, no leases are taken over for as long as one lasts.
func TestClockOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clockOffset{start: time.Now()}
		ahead := time.Hour
		for n, step := range []struct {
			takes, jump time.Duration
			jumped      bool
		}{{0, 0, false}, {0, 0, false}, {5 * time.Second, 0, false}, {0, maxJump / 2, false}, {0, time.Minute, true}, {0, -time.Hour, true}} {
			asked := time.Now()
			ahead += step.jump
			read := time.Since(c.start) + ahead
			time.Sleep(step.takes)
			if jumped := c.observe(read.Microseconds(), asked); jumped != step.jumped {
				t.Errorf("reading %d: a jump: %t", n, jumped)
			}
			if may := c.mayTakeOver(time.Minute); may == (n == 0 || step.jumped) {
				t.Errorf("reading %d: leases may be taken over: %t", n, may)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}
