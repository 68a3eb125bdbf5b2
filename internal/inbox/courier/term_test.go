package courier

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// slowLog is a log whose first line of a kind takes a while, as a pipe does that
// nobody reads.
type slowLog struct {
	slog.Handler
	message string
	slept   *atomic.Bool
}

func (s slowLog) Enabled(context.Context, slog.Level) bool { return true }
func (s slowLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == s.message {
		if s.slept.CompareAndSwap(false, true) { // no sync.Once: the others would wait for it
			time.Sleep(time.Minute)
		}
	}
	return nil
}

// What a lane's deliveries came to is noted in their order, whatever holds up one of
// those that made them, and before the next one begins: else a crash would leave B
// delivered and A waiting, and the next start would put A in B's place.
func TestNotesKeepTheirOrder(t *testing.T) {
	for _, noting := range []time.Duration{0, 30 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			rc := new(inboxtest.Receiver)
			cfg := config(rc)
			cfg.Pause = func(time.Duration) time.Duration { return 0 }
			cfg.Log = slog.New(slowLog{slog.DiscardHandler, "webhook delivered", new(atomic.Bool)})
			d := run(t, cfg)
			d.change(func() { d.noting = noting })
			rc.Set(func(w *webhookgate.Webhook, n int) webhookgate.Attempt {
				if string(w.Body) == "B" && n < 4 {
					return webhookgate.Attempt{Status: 500}
				}
				return webhookgate.Attempt{Status: 200}
			})
			for _, body := range []string{"A", "B", "C"} {
				d.send("t", body)
			}
			for range 10 {
				time.Sleep(time.Second / 10)
				d.poke() // something else is sent, say
			}
			if got := fmt.Sprint(d.noted()); got != "[1:delivered 2:waiting 2:waiting 2:delivered 3:delivered]" {
				t.Errorf("noted %v", got)
			}
			at := rc.Tried()
			for n := 1; n < len(at); n++ {
				if at[n].Sub(at[n-1]) < noting {
					t.Errorf("try %d began before what came before it was noted", n)
				}
			}
		})
	}
}

// A replica that was stopped between its turn and the sending may have lost the right to
// deliver, and nobody has told it yet: another one may have delivered what comes after.
func TestNothingIsSentAfterTheRightToIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		d := run(t, config(rc))
		var lost atomic.Bool
		d.change(func() { d.held = func() bool { return !lost.Load() } })
		d.change(func() { d.read = func() error { time.Sleep(time.Second); return nil } })
		d.sendWebhook(inboxtest.Webhook("acme", "A"), nil)
		time.Sleep(time.Second / 2)
		lost.Store(true)
		time.Sleep(time.Minute)
		if n := len(rc.Tried()); n != 0 {
			t.Errorf("%d tries without the right to", n)
		}
		lost.Store(false)
		time.Sleep(time.Minute)
		rc.Want(t, "acme:A")
	})
}

// A renewal of the lease may get through just after a delivery was held back for the want
// of it: that is no try, and says nothing of the receiver.
func TestRightThatComesBackMakesNoTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		d := run(t, config(rc))
		var asked atomic.Int32
		d.change(func() { d.held = func() bool { return asked.Add(1) != 2 } }) // not once it is about to be sent
		d.send("acme", "A")
		time.Sleep(time.Minute)
		rc.Want(t, "acme:A")
		if a := d.stands(1).Attempts; len(a) != 1 || a[0].Status != 200 {
			t.Errorf("%+v", a)
		}
	})
}

// other is a second Term of the same desk's.
type other struct {
	*desk
	lost atomic.Bool
}

func (o *other) Held() bool { return !o.lost.Load() }

// A term that is not held at the moment hides no lane of another.
func TestTermsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		d := run(t, config(rc))
		o := &other{desk: d}
		o.lost.Store(true)
		d.Begin(o, nil)
		for n := range 3 {
			w := inboxtest.Webhook(fmt.Sprint("o", n), "A")
			d.Take(o, &record.Record{ID: uint64(100 + n), Webhook: w}, w, false)
			d.send(fmt.Sprint("t", n), "A")
		}
		synctest.Wait()
		if s := d.Stats(); len(rc.Accepted()) != 3 || s.Pending != 3 {
			t.Errorf("the receiver got %v, %+v", rc.Accepted(), s)
		}
		o.lost.Store(false)
		time.Sleep(2 * firstPause)
		if got := rc.Accepted(); len(got) != 6 {
			t.Errorf("the receiver got %v", got)
		}
	})
}

// A term that ends takes its lanes along: what is under way is cut off, nothing of it is
// noted, and nothing begins any more. Those of others go on.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Slow(time.Minute)
		d := run(t, config(rc))
		o := &other{desk: d}
		d.Begin(o, nil)
		for n := range 2 {
			w := inboxtest.Webhook("o", fmt.Sprint(n))
			d.Take(o, &record.Record{ID: uint64(100 + n), Webhook: w}, w, false)
			d.send("t", fmt.Sprint(n))
		}
		time.Sleep(time.Second)
		began := time.Now()
		d.End(cut(), o)
		d.End(cut(), o) // once more does no harm
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		w := inboxtest.Webhook("o", "late")
		d.Take(o, &record.Record{ID: 102, Webhook: w}, w, false)
		if s := d.Stats(); s.Pending != 2 {
			t.Errorf("%+v", s)
		}
		time.Sleep(5 * time.Minute)
		rc.Want(t, "t:0", "t:1")
		d.want(record.Delivered, record.Delivered)
		if d.Courier.held != 0 {
			t.Errorf("%d bytes of content are still held", d.Courier.held)
		}

		// The same lanes can come back.
		d.Begin(o, []*record.Record{{ID: 100, Webhook: inboxtest.Webhook("o", "0")}})
		d.change(func() { d.contents[100] = inboxtest.Webhook("o", "0") })
		time.Sleep(5 * time.Minute)
		rc.Want(t, "t:0", "t:1", "o:0")
	})
}

// A note that is given back after the term has ended changes nothing.
func TestNotedAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		d := run(t, config(rc))
		d.change(func() { d.noting = time.Minute })
		d.send("t", "A")
		d.send("t", "B")
		time.Sleep(time.Second)
		d.End(cut(), d)
		d.Begin(d, []*record.Record{{ID: 2, Webhook: inboxtest.Webhook("t", "B")}})
		time.Sleep(5 * time.Minute)
		rc.Want(t, "t:A", "t:B")
		if s := d.Stats(); s.Pending != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(500))
		cfg := config(rc)
		cfg.Pause = full
		d := run(t, cfg)
		d.send("t", "A")
		d.send("t", "B")
		time.Sleep(time.Minute)
		lane := inboxtest.Webhook("t", "").Lane
		if !d.Waits(lane, 1) || !d.Waits(lane, 2) || d.Waits(lane, 3) {
			t.Error("who waits?")
		}
		if r, ok := d.Find(lane, 1); !ok || r.Status.Tries == 0 {
			t.Errorf("%+v, %v", r, ok)
		}
		rc.Set(nil)
		rc.Slow(time.Second)
		if r, ok := d.Remove(d, lane, 1); !ok || r.ID != 1 || r.Status.Tries == 0 {
			t.Errorf("%+v, %v", r, ok)
		}
		time.Sleep(time.Second / 2) // its successor is at it, without the pause of the first
		if _, ok := d.Remove(d, lane, 2); ok {
			t.Error("removed while it is being delivered")
		}
		d.change(func() { d.noting = time.Second })
		time.Sleep(time.Second)
		if _, ok := d.Remove(d, lane, 2); ok {
			t.Error("removed while its delivery is noted")
		}
		time.Sleep(time.Second)
		rc.Want(t, "t:B")

		rc.Set(inboxtest.Status(422))
		d.send("t", "C")
		time.Sleep(time.Minute)
		if r, ok := d.Remove(d, lane, 3); !ok || r.Status.State != record.Parked {
			t.Errorf("%+v, %v", r, ok)
		}
		if s := d.Stats(); s.Pending+s.Parked != 0 || len(d.lanes) != 0 {
			t.Errorf("%+v, %d lanes", s, len(d.lanes))
		}
	})
}

// "Try now" drops a lane's pauses, and the pause between two probes.
func TestRetry(t *testing.T) {
	for _, answer := range []inboxtest.Answer{inboxtest.Status(500), inboxtest.Refusing, func(*webhookgate.Webhook, int) webhookgate.Attempt {
		return webhookgate.Attempt{Status: 503, RetryAfter: time.Hour}
	}} {
		synctest.Test(t, func(t *testing.T) {
			rc := new(inboxtest.Receiver)
			rc.Set(answer)
			cfg := config(rc)
			cfg.Pause = full
			d := run(t, cfg)
			d.send("t", "A")
			d.send("t", "B")
			time.Sleep(20*time.Minute + 500*time.Millisecond)
			rc.Set(nil)
			d.Retry(inboxtest.Webhook("t", "").Lane, 1)
			synctest.Wait()
			if got := rc.Accepted(); !slices.Equal(got, []string{"t:A", "t:B"}) {
				t.Errorf("the receiver got %v", got)
			}
		})
	}
}

// Several that are sent again go ahead of what came after them, by age: the newest state is the last.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Slow(time.Second)
		d := run(t, config(rc))
		d.change(func() { d.next = 100 })
		for _, body := range []string{"A", "B"} {
			d.send("t", body)
		}
		synctest.Wait()
		for n, id := range []uint64{3, 2, 1, 200} {
			w := inboxtest.Webhook("t", fmt.Sprint("again ", n))
			r := &record.Record{ID: id, Webhook: w}
			r.SendAgain()
			d.Take(d, r, w, true)
		}
		time.Sleep(time.Minute)
		rc.Want(t, "t:A", "t:again 2", "t:again 1", "t:again 0", "t:B", "t:again 3")
	})
}

// cut is a context that has ended: who ends a term with it does not wait.
func cut() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Of a term that has ended nobody can say any more that a lane has nothing on its way: who took over may have begun.
func TestNothingIsTakenOutOfATermThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		d := run(t, config(rc))
		d.send("t", "A")
		synctest.Wait()
		d.End(t.Context(), d)
		if _, ok := d.RemoveAll(d, inboxtest.Webhook("t", "A").Lane); ok {
			t.Error("it says that the lane has nothing any more")
		}
	})
}
