package courier

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// A delivery takes from when the webhook was taken in, over all its tries.
func TestDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(inboxtest.Receiver)
		r.Set(func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
			if n < 3 {
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		type told struct {
			receiver string
			after    time.Duration
		}
		all := make(chan told, 10)
		cfg := config(r)
		cfg.Pause = full
		cfg.Delivered = func(receiver string, after time.Duration) { all <- told{receiver, after} }
		d := run(t, cfg)
		d.send("acme", "1")
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(all) != 1 {
			t.Fatalf("told %d times", len(all))
		}
		if got := <-all; got != (told{cfg.Receivers[0].Name, 3 * time.Second}) { // pauses of 1 s and 2 s
			t.Errorf("%+v", got)
		}
	})
}

// Who is held up is named with what holds it up; and what was the receiver's fault is not blamed
// on a tenant, nor the other way round.
func TestHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(inboxtest.Receiver)
		var down atomic.Bool
		r.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			switch {
			case down.Load():
				return webhookgate.Attempt{Status: 503}
			case w.Lane.Tenant == "harbour":
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		cfg := config(r)
		cfg.Pause = full
		d := run(t, cfg)
		look := func(when string, missed, refused int, takesNone bool) {
			t.Helper()
			synctest.Wait()
			got := d.Stats().Receivers[cfg.Receivers[0].Name]
			if got.Missed != missed || got.Refused != refused || got.TakesNone != takesNone {
				t.Errorf("%s: %+v", when, got)
			}
		}
		look("nothing has come", 0, 0, false)
		d.send("harbour", "1")
		d.send("harbour", "2")
		look("one is refused", 0, 1, true)
		time.Sleep(4 * time.Second)
		d.send("acme", "1")
		look("another is taken", 0, 1, false)
		held := d.HeldUp()
		if len(held) != 1 {
			t.Fatalf("%+v", held)
		}
		if h := held[0]; h.Lane.Tenant != "harbour" || h.ID != 1 || h.Tries != 3 || h.Last.Status != 500 || h.Behind != 1 || h.Down || time.Until(h.Next) != 3*time.Second {
			t.Errorf("%+v", h) // tried after 0, 1 and 3 s, and again after 7
		}
		down.Store(true)
		d.send("acme", "2")
		d.send("globex", "1")
		look("the receiver is down", 2, 1, false)
		time.Sleep(4 * time.Second)
		down.Store(false)
		time.Sleep(5 * time.Second)
		look("it is back", 0, 1, false)
	})
}

// A tenant that is refused stays named, however short its pause happens to be, when another's webhook is taken.
func TestHeldUpWithAShortPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(inboxtest.Receiver)
		r.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if w.Lane.Tenant == "harbour" {
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		cfg := config(r)
		cfg.Pause = func(time.Duration) time.Duration { return firstPause / 2 }
		d := run(t, cfg)
		d.send("harbour", "1")
		synctest.Wait()
		time.Sleep(firstPause / 4)
		d.send("acme", "1")
		synctest.Wait()
		if held := d.HeldUp(); len(held) != 1 || held[0].Lane.Tenant != "harbour" {
			t.Errorf("%+v", held)
		}
	})
}

// What waits or is parked is counted by its bytes, whatever becomes of it.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(inboxtest.Receiver)
		r.Set(inboxtest.Refusing)
		cfg := config(r)
		cfg.Pause = full
		d := run(t, cfg)
		take := func(id uint64, state record.State, again bool) {
			w := inboxtest.Webhook("t", "body")
			d.change(func() { d.contents[id] = w })
			d.Take(d, &record.Record{ID: id, Webhook: w, Status: record.Status{State: state}, Size: 10}, w, again)
		}
		want := func(when string, bytes, waiting int64) {
			t.Helper()
			synctest.Wait()
			if got := d.Load(d); got != (record.Load{Bytes: bytes, Waiting: waiting}) {
				t.Errorf("%s: %+v", when, got)
			}
		}
		take(1, record.Waiting, false)
		take(2, record.Waiting, false)
		take(3, record.Waiting, false)
		want("three wait", 30, 30)
		take(4, record.Parked, false)
		want("one is parked", 40, 30)
		take(4, record.Waiting, true)
		want("that is sent again", 40, 40)
		lane := inboxtest.Webhook("t", "").Lane
		d.Remove(d, lane, 2)
		want("one is taken out", 30, 30)
		r.Set(inboxtest.Status(422))
		time.Sleep(10 * time.Minute)
		want("all are parked", 30, 0)
		d.Remove(d, lane, 1)
		want("one of them is taken out", 20, 0)
		r.Set(nil)
		take(5, record.Waiting, false)
		want("the others are superseded", 0, 0)
		take(6, record.Parked, false)
		d.RemoveAll(d, lane)
		want("all are taken out", 0, 0)
	})
}
