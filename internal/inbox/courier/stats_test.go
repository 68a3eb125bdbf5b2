package courier

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
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
