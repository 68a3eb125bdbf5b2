package file

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

func (r *running) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) resume(p record.Pause) {
	r.t.Helper()
	if was, err := r.Resume(p); err != nil || !was {
		r.t.Fatalf("%s was paused: %t, %v", p, was, err)
	}
}

// What is paused waits, in its order, also after a restart; all else goes on.
func TestPause(t *testing.T) {
	for _, p := range []record.Pause{{}, {Receiver: "main"}, {Platform: "p", Tenant: "t"}} {
		t.Run(p.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rc := new(inboxtest.Receiver)
				cfg := config(t.TempDir(), rc)
				i := open(t, cfg)
				i.must(i.Pause(p))
				i.keep("t", "A")
				i.keep("t", "B")
				time.Sleep(time.Hour)
				if n := len(rc.Tried()); n != 0 {
					t.Errorf("%d tries while paused", n)
				}
				i.keep("u", "A")
				time.Sleep(time.Second)
				if others := len(rc.Accepted()); (others == 1) != (p.Tenant != "") {
					t.Errorf("%d of another tenant delivered", others)
				}
				if err := i.Redeliver(1, true); err != nil { // "try now" does not go past a pause
					t.Error(err)
				}
				i.stop()

				i = open(t, cfg)
				if now := i.Paused(); len(now) != 1 || !now[0].Same(p) || time.Since(now[0].Since) < time.Hour {
					t.Errorf("after a restart %v", now)
				}
				time.Sleep(time.Hour)
				if p.Tenant == "" && len(rc.Tried()) != 0 {
					t.Error("tried after a restart")
				}
				i.must(i.Pause(p)) // twice is once
				i.resume(p)
				if was, err := i.Resume(p); was || err != nil {
					t.Errorf("resumed twice: %t, %v", was, err)
				}
				time.Sleep(time.Second)
				i.want(record.Delivered, record.Delivered, record.Delivered)
				var of []string
				for _, a := range rc.Accepted() {
					if a[0] == 't' {
						of = append(of, a)
					}
				}
				if len(of) != 2 || of[0] != "t:A" || of[1] != "t:B" {
					t.Errorf("delivered %v", of)
				}
				i.stop()
				if i = open(t, cfg); len(i.Paused()) != 0 {
					t.Error("a pause that was ended is back after a restart")
				}
			})
		})
	}
}

// A tenant whose code is longer than a key of the file can be paused like any other, and breaks nothing.
func TestPauseOfALongTenantCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		cfg := config(t.TempDir(), rc)
		i := open(t, cfg)
		long, other := strings.Repeat("x", 40_000), strings.Repeat("x", 40_001)
		p := record.Pause{Platform: "p", Tenant: long}
		i.must(i.Pause(p))
		i.must(i.Pause(record.Pause{Platform: "p", Tenant: other}))
		i.keep(long, "A")
		i.stop()
		i = open(t, cfg)
		if n := len(i.Paused()); n != 2 {
			t.Errorf("%d pauses after a restart", n)
		}
		time.Sleep(time.Hour)
		i.want(record.Waiting)
		i.resume(p)
		time.Sleep(time.Second)
		i.want(record.Delivered)
		i.stop()
		if i = open(t, cfg); len(i.Paused()) != 1 || i.Paused()[0].Tenant != other {
			t.Errorf("%d pauses after the last restart", len(i.Paused()))
		}
	})
}

// What was paused cannot be read any more: nothing is delivered that somebody may have paused.
func TestDamagedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t.TempDir(), new(inboxtest.Receiver))
		i := open(t, cfg)
		i.must(i.Pause(record.Pause{Receiver: "main"}))
		i.keep("t", "A")
		i.must(i.db.Update(func(tx *bbolt.Tx) error { return damage(tx, metaBucket, pausedKey) }))
		i.stop()
		log := newErrorLog()
		cfg.logTo(slog.New(log))
		i = open(t, cfg)
		time.Sleep(time.Hour)
		i.want(record.Waiting)
		if len(*log.lines) != 1 || len(i.Paused()) != 1 || !i.Paused()[0].Same(record.Pause{}) {
			t.Errorf("the log has %q, paused is %v", *log.lines, i.Paused())
		}
		i.resume(record.Pause{})
		time.Sleep(time.Second)
		i.want(record.Delivered)
		i.stop()
		if i = open(t, cfg); len(i.Paused()) != 0 {
			t.Errorf("after a restart paused is %v", i.Paused())
		}
	})
}

// A delivery that is under way when somebody pauses ends, and nothing begins after it; a
// receiver that was down is asked no more.
func TestPauseAmidst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		rc.Slow(5 * time.Second)
		i.keep("t", "A")
		i.keep("t", "B")
		time.Sleep(time.Second)
		i.must(i.Pause(record.Pause{}))
		time.Sleep(time.Minute)
		rc.Want(t, "t:A")
		i.want(record.Delivered, record.Waiting)
		rc.Slow(0)
		rc.Set(inboxtest.Refusing)
		i.resume(record.Pause{})
		time.Sleep(time.Minute)
		i.must(i.Pause(record.Pause{Receiver: "main"}))
		tried := len(rc.Tried())
		time.Sleep(time.Hour)
		if n := len(rc.Tried()); n != tried {
			t.Errorf("%d tries while paused", n-tried)
		}
		rc.Set(nil)
		i.resume(record.Pause{Receiver: "main"})
		time.Sleep(5 * time.Minute)
		rc.Want(t, "t:A", "t:B")
	})
}

func TestErase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		cfg := config(t.TempDir(), rc)
		gone := make(map[webhookgate.Lane]uint64)
		cfg.OnErase = func(l webhookgate.Lane, upTo uint64) { gone[l] = upTo }
		i := open(t, cfg)
		secret := func(s string) string { return s + "-do-not-keep" }
		i.keep("t", secret("delivered"))
		i.keep("u", "A")
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(422))
		i.keep("t", secret("parked"))
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(500))
		i.keep("t", secret("waiting"))
		i.keep("t", secret("behind"))
		time.Sleep(time.Minute)
		if all, err := i.Platforms("t"); err != nil || len(all) != 1 || all[0] != "p" {
			t.Fatal(all, err)
		}
		if n, err := i.Erase("p", "t"); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		lane := webhookgate.Lane{Platform: "p", Tenant: "t"}
		if gone[lane] < 5 {
			t.Errorf("told of %v", gone)
		}
		i.want(record.Delivered)
		if used, _ := i.Usage(); used != 0 || i.history.count != 1 {
			t.Errorf("%d bytes wait, %d are finished", used, i.history.count)
		}
		if _, _, err := i.Snapshot(t.Context(), lane); !errors.Is(err, record.ErrNotFound) {
			t.Errorf("the snapshot: %v", err)
		}
		if all, err := i.Platforms("t"); len(all) != 0 || err != nil {
			t.Error(all, err)
		}
		tried := len(rc.Tried())
		time.Sleep(time.Hour)
		if len(rc.Tried()) != tried {
			t.Error("what was erased is tried")
		}
		rc.Set(nil)
		if i.keep("t", secret("behind")) { // nothing is remembered
			t.Error("taken for a copy of what was erased")
		}
		i.stop()
		i = open(t, cfg)
		i.want(record.Delivered, record.Delivered)
	})
}

// Whatever is about to be written, delivered or taken in while a tenant is erased: nothing of it
// stays, and what comes after it does.
func TestEraseAmidst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		cfg := config(t.TempDir(), rc)
		i := open(t, cfg)
		i.slowDisk(100 * time.Millisecond)
		for n := range 40 {
			rc.Slow(time.Duration(n) * 7 * time.Millisecond)
			go i.Append(inboxtest.Webhook("t", string(rune('A'+n))+"-before"), false)
			time.Sleep(time.Duration(n%5) * 30 * time.Millisecond)
			done := make(chan error)
			go func() { _, err := i.Erase("p", "t"); done <- err }()
			time.Sleep(time.Duration(n%3) * 40 * time.Millisecond)
			go i.Append(inboxtest.Webhook("t", string(rune('A'+n))+"-amidst"), false)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			i.want(statesOf(i)...) // the courier counts what is shown
			if _, err := i.Erase("p", "t"); err != nil {
				t.Fatal(err)
			}
			i.want()
			if n := len(i.unwrittenNotes()); n != 0 {
				t.Errorf("%d notes are left", n)
			}
		}
		i.stop()
		i = open(t, cfg)
		i.want()
	})
}

func statesOf(i *running) (states []record.State) {
	entries, _ := i.List(record.Filter{})
	for n := range entries {
		states = append(states, entries[len(entries)-1-n].State)
	}
	return states
}

// A tenant of which much waits, and is being delivered one after the other, can be erased.
func TestEraseOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		rc.Slow(time.Second)
		for n := range 100 {
			i.keep("t", string(rune('A'+n)))
		}
		i.keep("u", "A")
		if n, err := i.Erase("p", "t"); n != 100 || err != nil {
			t.Fatalf("%d erased, %v", n, err)
		}
		time.Sleep(time.Minute)
		if n := len(rc.Tried()); n != 2 {
			t.Errorf("%d tries, want one of each tenant", n)
		}
	})
}
