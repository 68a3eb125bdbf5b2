package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/webhookgate"
)

func (r *receiver) slow(delay time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = delay
}

func (r *receiver) tried() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.tries...)
}

// meanwhile is a store in which things happen at the worst moment.
type meanwhile struct {
	Store
	newest func() // after Newest has looked
}

func (m meanwhile) Newest(lane webhookgate.Lane) (Entry, bool, error) {
	e, ok, err := m.Store.Newest(lane)
	m.newest()
	return e, ok, err
}

// unreadable is a store whose contents can't be read.
type unreadable struct {
	Store
	reads *atomic.Int32
}

func (u unreadable) Read(uint64) (*record, error) {
	u.reads.Add(1)
	time.Sleep(time.Millisecond)
	return nil, errors.New("not at the moment")
}

// The receiver is down, and what its lanes have waiting can't be read: that is not
// tried without a pause, as nothing of it tells whether the receiver is back.
func TestUnreadableStoreWhileTheReceiverIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		rc.set(refusing)
		i := open(t, config(t.TempDir(), rc))
		var reads atomic.Int32
		i.courier.store = unreadable{i.courier.store, &reads}
		for n := range 2 * opensAfter {
			i.keep(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Minute)
		if n := reads.Load(); n == 0 || n > 20*opensAfter {
			t.Errorf("%d reads in a minute", n)
		}
	})
}

// A redelivery that was checked against what was the latest then must not undo what
// came in between: nobody has said force.
func TestRedeliveryDoesNotUndoWhatCameMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.slow(time.Second)
		i.Inbox.store = meanwhile{i.Inbox.store, func() {
			i.keep("t", "B")
			time.Sleep(time.Second / 2) // it is being delivered
		}}
		overwrite := new(OverwriteError)
		if err := i.Redeliver(1, false); !errors.As(err, &overwrite) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Minute)
		if got := rc.accepted(); got[len(got)-1] != "t:B" {
			t.Errorf("the receiver got %v: B is the newest", got)
		}
	})
}

// Whatever is kept while a redelivery is under way: what the memory claims in the end
// is what the receiver got last.
func TestRedeliveryAmongArrivals(t *testing.T) {
	for n := range 20 {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		for len(rc.accepted()) == 0 || i.Stats().Pending > 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(3 * settleDelay) // until then it counts as waiting
		var wg sync.WaitGroup
		wg.Go(func() { i.keep("other", "A") }) // keeps the disk busy: what follows shares a transaction
		wg.Go(func() { i.Redeliver(1, true) })
		wg.Go(func() { i.keep("t", "B") })
		wg.Wait()
		for i.Stats().Pending > 0 {
			time.Sleep(time.Millisecond)
		}
		last := ""
		for _, got := range rc.accepted() {
			if s, ok := strings.CutPrefix(got, "t:"); ok {
				last = s
			}
		}
		for _, s := range []string{"A", "B"} {
			if s != last && i.keep("t", s) {
				t.Fatalf("run %d: the receiver holds %s, and a copy of %s was dropped", n, last, s)
			}
		}
		i.stop()
	}
}

// A tenant that was forgotten has no tail that Again could see; still B waits, and
// comes after A.
func TestRedeliveryAfterForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.set(status(500))
		i.keep("t", "B")
		time.Sleep(time.Second)
		if n, err := i.Forget("t"); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := i.Redeliver(1, true); err != nil {
			t.Fatal(err)
		}
		rc.set(nil)
		time.Sleep(time.Minute)
		wantGot(t, rc, "t:A", "t:A", "t:B")
		if i.keep("t", "A") {
			t.Error("a copy of A was dropped; the receiver holds B")
		}
	})
}

// The first of three redeliveries is done, the second has failed and waits, the third
// goes ahead of it: then the second is what the receiver holds in the end.
func TestRedeliveryAheadOfARedelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		i.courier.pause = func(ceiling time.Duration) time.Duration { return ceiling }
		for _, s := range []string{"A", "B", "C"} {
			i.keep("t", s)
			time.Sleep(time.Second)
		}
		rc.slow(time.Second)
		failed := false
		rc.set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if string(w.Body) == "B" && !failed {
				failed = true
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		for id, pause := range []time.Duration{1: 500 * time.Millisecond, 2: 2 * time.Second, 3: time.Minute} {
			if id > 0 {
				if err := i.Redeliver(uint64(id), true); err != nil {
					t.Fatal(err)
				}
				time.Sleep(pause)
			}
		}
		got := rc.accepted()
		if got[len(got)-1] != "t:C" && i.keep("t", "C") {
			t.Errorf("a copy of C was dropped; the receiver got %v", got)
		}
	})
}

// Several sent back together come in the order in which they were asked for.
func TestSeveralRedeliveriesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		for _, s := range []string{"A", "B", "C"} {
			i.keep("t", s)
			time.Sleep(time.Second)
		}
		rc.slow(time.Second)
		for id := range uint64(3) {
			if err := i.Redeliver(id+1, true); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		wantGot(t, rc, "t:A", "t:B", "t:C", "t:A", "t:B", "t:C")
	})
}

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
// those that made them: else a crash would leave B delivered and A waiting, and the
// next start would put A in B's place.
func TestNotesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := &receiver{delay: 10 * time.Millisecond}
		cfg := config(dir, rc)
		cfg.Log = slog.New(slowLog{slog.DiscardHandler, "webhook delivered", new(atomic.Bool)})
		i := open(t, cfg)
		i.keep("t", "A")
		i.keep("t", "B")
		time.Sleep(time.Second)
		i.keep("other", "A") // has the courier look at its lanes
		time.Sleep(time.Second)

		file, err := os.ReadFile(filepath.Join(dir, "inbox.db"))
		if err != nil {
			t.Fatal(err)
		}
		dir = t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "inbox.db"), file, 0o600); err != nil {
			t.Fatal(err)
		}
		next := new(receiver)
		open(t, config(dir, next))
		time.Sleep(time.Minute)
		got := rc.accepted()
		for _, g := range next.accepted() {
			if strings.HasPrefix(g, "t:") {
				got = append(got, g)
			}
		}
		last := ""
		for _, g := range got {
			if strings.HasPrefix(g, "t:") {
				last = g
			}
		}
		if last != "t:B" {
			t.Errorf("the receiver got %v, and %v after the crash", rc.accepted(), next.accepted())
		}
	})
}

// A try that failed and the one that succeeded right after it.
func TestNotesOfOneWebhookKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
			if n == 1 {
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		}}
		cfg := config(t.TempDir(), rc)
		cfg.Log = slog.New(slowLog{slog.DiscardHandler, "delivery failed, webhook waits", new(atomic.Bool)})
		i := open(t, cfg)
		i.courier.pause = func(time.Duration) time.Duration { return 0 }
		i.keep("t", "A")
		time.Sleep(time.Second)
		i.keep("other", "A") // has the courier look at its lanes
		time.Sleep(2 * time.Minute)
		i.want(Delivered, Delivered)
	})
}

// A success wakes the lanes that wait because the receiver was down, also when it had
// answered something else before.
func TestSuccessWakesAfterAnotherAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: refusing}
		i := open(t, config(t.TempDir(), rc))
		i.courier.pause = func(ceiling time.Duration) time.Duration { return ceiling }
		i.keep("waits", "A")
		time.Sleep(20 * time.Minute) // its pause is five minutes by now
		back := time.Now()
		rc.set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if w.Lane.Tenant == "ill" {
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		i.keep("ill", "A")
		time.Sleep(10 * time.Second)
		i.keep("well", "A")
		time.Sleep(10 * time.Second)
		if got := rc.accepted(); fmt.Sprint(got) != "[well:A waits:A]" {
			t.Errorf("%v after the receiver's return it has accepted %v", time.Since(back), got)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		asked, waits time.Duration
	}{{30 * time.Second, 30 * time.Second}, {0, time.Second}, {48 * time.Hour, longestWish}} {
		t.Run(fmt.Sprint(test.asked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, code := range []int{429, 503} {
					rc := &receiver{answer: func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
						if n == 1 {
							return webhookgate.Attempt{Status: code, RetryAfter: test.asked}
						}
						return webhookgate.Attempt{Status: 200}
					}}
					i := open(t, config(t.TempDir(), rc))
					i.courier.pause = func(ceiling time.Duration) time.Duration { return ceiling }
					i.keep("t", "A")
					time.Sleep(2 * time.Hour)
					if at := rc.tried(); len(at) != 2 || at[1].Sub(at[0]) != test.waits {
						t.Errorf("%d: tried at %v", code, at)
					}
				}
			})
		})
	}
}

// Waiting behind others never uses up tries, and of many attempts the last are kept.
func TestAttemptsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: refusing}
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		i.keep("t", "B")
		time.Sleep(2 * time.Hour)
		i.want(Waiting, Waiting)
		first, _ := i.Show(1)
		if len(first.Attempts) != keptAttempts || first.Tries != 0 || time.Since(first.Attempts[keptAttempts-1].At) > lastPause+time.Minute {
			t.Errorf("%d attempts, %d tries, the last %v ago", len(first.Attempts), first.Tries, time.Since(first.Attempts[keptAttempts-1].At))
		}
		if second, _ := i.Show(2); len(second.Attempts) != 0 || second.Tries != 0 {
			t.Errorf("%+v", second.Entry)
		}
	})
}

func TestConcurrencyOverAllLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{delay: time.Second}
		cfg := config(t.TempDir(), rc)
		cfg.Concurrency = 3
		i := open(t, cfg)
		began := time.Now()
		for n := range 30 {
			i.keep(fmt.Sprint("t", n), "A")
		}
		for len(rc.accepted()) < 30 {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if rc.most != 3 || time.Since(began) > 12*time.Second {
			t.Errorf("%d at once, done after %v", rc.most, time.Since(began))
		}
	})
}

// No goroutine for a lane that waits, and none left at the end (synctest sees to that).
func TestEndIsOrderly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := &receiver{delay: time.Minute}
		i, err := Open(config(dir, rc))
		if err != nil {
			t.Fatal(err)
		}
		soft, stop := context.WithCancel(context.Background())
		hard, cut := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { i.Run(soft, hard); close(done) }()
		for _, s := range []string{"A", "B"} {
			if _, err := i.Keep(webhook("t", s)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		stop()
		time.Sleep(time.Second)
		select {
		case <-done:
			t.Error("the delivery under way was not waited for")
		default:
		}
		cut()
		<-done
		if err := i.Close(); err != nil {
			t.Error(err)
		}
		rc = new(receiver)
		open(t, config(dir, rc)).want(Delivered, Delivered)
		wantGot(t, rc, "t:A", "t:B")
		if n := len(rc.tried()); n != 2 {
			t.Errorf("%d tries", n)
		}
	})
}

// An outage is said once when it begins and once when it ends, however many tries
// there were between.
func TestOutageIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		r.set(refusing)
		var log bytes.Buffer
		cfg := config(t.TempDir(), r)
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		i := open(t, cfg)
		for n := range 20 {
			if _, err := i.Keep(webhook(fmt.Sprint("t", n), "A")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		r.set(nil)
		time.Sleep(time.Minute)
		i.stop()
		if down, back := strings.Count(log.String(), "level=WARN msg=\"receiver seems to be down"), strings.Count(log.String(), "receiver answers again"); down != 1 || back != 1 {
			t.Errorf("said down %d times, back %d times", down, back)
		}
	})
}

// A lane whose note is being written is in no queue. When the receiver has taken
// something meanwhile it is woken as the others were.
func TestNotingLaneIsWoken(t *testing.T) {
	c := newCourier(config(t.TempDir(), new(receiver)))
	for _, taken := range []bool{true, false} {
		w := webhook(fmt.Sprint(taken), "A")
		began := time.Now()
		l := c.lane(w.Lane)
		l.waiting = []*record{{id: 1, webhook: w}}
		l.down, l.noting, l.last, l.at = true, true, began, began.Add(lastPause)
		if c.accepted = began.Add(-time.Second); taken {
			c.accepted = began.Add(time.Millisecond)
		}
		c.noted(w.Lane)
		if soon := !l.at.After(began.Add(firstPause)); l.index < 0 || soon != taken {
			t.Errorf("taken %v: woken %v, in the queue %v", taken, soon, l.index >= 0)
		}
	}
}

// slowReads is a store whose contents take a while to be read.
type slowReads struct {
	Store
	delay time.Duration
}

func (s slowReads) Read(id uint64) (*record, error) {
	time.Sleep(s.delay)
	return s.Store.Read(id)
}

// A replica that was stopped between its turn and the sending may have lost the right to
// deliver, and nobody has told it yet: another one may have delivered what comes after.
func TestNothingIsSentAfterTheRightToIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		var lost atomic.Bool
		c := i.courier
		c.mu.Lock()
		c.store = slowReads{c.store, time.Second}
		c.may = func() bool { return !lost.Load() }
		c.held = holdMost // so that it is read
		c.mu.Unlock()
		i.keep("acme", "A")
		time.Sleep(time.Second / 2)
		lost.Store(true)
		time.Sleep(time.Minute)
		if n := len(rc.tried()); n != 0 {
			t.Errorf("%d tries without the right to", n)
		}
		lost.Store(false)
		time.Sleep(time.Minute)
		wantGot(t, rc, "acme:A")
	})
}

// A renewal of the lease may get through just after a delivery was held back for the want
// of it: that is no try, and says nothing of the receiver.
func TestRightThatComesBackMakesNoTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		var asked atomic.Int32
		c := i.courier
		c.mu.Lock()
		c.may = func() bool { return asked.Add(1) != 2 } // not once it is about to be sent
		c.mu.Unlock()
		i.keep("acme", "A")
		time.Sleep(time.Minute)
		wantGot(t, rc, "acme:A")
		entries, err := i.List(Filter{})
		if err != nil || len(entries) != 1 || len(entries[0].Attempts) != 1 || entries[0].Attempts[0].Status != 200 {
			t.Errorf("%+v, %v", entries, err)
		}
	})
}
