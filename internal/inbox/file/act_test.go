package file

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// A redelivery that was checked against what was the latest then must not undo what
// came in between: nobody has said force.
func TestRedeliveryDoesNotUndoWhatCameMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.Slow(time.Second)
		i.slowDisk(time.Second) // both stand in the queue before either is looked at
		go i.keep("t", "B")
		synctest.Wait()
		overwrite := new(record.OverwriteError)
		if err := i.Redeliver(1, false); !errors.As(err, &overwrite) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Minute)
		if got := rc.Accepted(); got[len(got)-1] != "t:B" {
			t.Errorf("the receiver got %v: B is the newest", got)
		}
	})
}

// Whatever is kept while a redelivery is under way: what the memory claims in the end
// is what the receiver got last.
func TestRedeliveryAmongArrivals(t *testing.T) {
	t.Parallel()
	for n := range 20 {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		for len(rc.Accepted()) == 0 || i.courier.Stats().Pending > 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(3 * settleDelay) // until then it counts as waiting
		var wg sync.WaitGroup
		wg.Go(func() { i.keep("other", "A") }) // keeps the disk busy: what follows shares a transaction
		wg.Go(func() { i.Redeliver(1, true) })
		wg.Go(func() { i.keep("t", "B") })
		wg.Wait()
		for i.courier.Stats().Pending > 0 {
			time.Sleep(time.Millisecond)
		}
		last := ""
		for _, got := range rc.Accepted() {
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
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(500))
		i.keep("t", "B")
		time.Sleep(time.Second)
		if n, err := i.Forget(nil, "t"); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := i.Redeliver(1, true); err != nil {
			t.Fatal(err)
		}
		rc.Set(nil)
		time.Sleep(time.Minute)
		rc.Want(t, "t:A", "t:A", "t:B")
		if i.keep("t", "A") {
			t.Error("a copy of A was dropped; the receiver holds B")
		}
	})
}

// The first of three redeliveries is done, the second has failed and waits, the third
// goes ahead of it: then the second is what the receiver holds in the end.
func TestRedeliveryAheadOfARedelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		cfg := config(t.TempDir(), rc)
		cfg.courier.Pause = func(ceiling time.Duration) time.Duration { return ceiling }
		i := open(t, cfg)
		for _, s := range []string{"A", "B", "C"} {
			i.keep("t", s)
			time.Sleep(time.Second)
		}
		rc.Slow(time.Second)
		failed := false
		rc.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
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
		got := rc.Accepted()
		if got[len(got)-1] != "t:C" && i.keep("t", "C") {
			t.Errorf("a copy of C was dropped; the receiver got %v", got)
		}
	})
}

// Several sent back together come in the order in which they were asked for.
func TestSeveralRedeliveriesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		for _, s := range []string{"A", "B", "C"} {
			i.keep("t", s)
			time.Sleep(time.Second)
		}
		rc.Slow(time.Second)
		for id := range uint64(3) {
			if err := i.Redeliver(id+1, true); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		rc.Want(t, "t:A", "t:B", "t:C", "t:A", "t:B", "t:C")
	})
}

func TestRedelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		for _, body := range []string{"A", "B"} {
			i.keep("t", body)
			time.Sleep(time.Second)
		}
		overwrite := new(record.OverwriteError)
		if err := i.Redeliver(1, false); !errors.As(err, &overwrite) || overwrite.Latest.ID != 2 {
			t.Errorf("an old snapshot over a new one: %v", err)
		}
		if err := i.Redeliver(9, false); !errors.Is(err, record.ErrNotFound) {
			t.Errorf("got %v", err)
		}
		if err := i.Redeliver(2, false); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := i.Redeliver(1, true); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		rc.Want(t, "t:A", "t:B", "t:B", "t:A")
		if i.keep("t", "B") {
			t.Error("B was taken for what the receiver holds, but it holds A")
		}
		time.Sleep(time.Second)
		rc.Want(t, "t:A", "t:B", "t:B", "t:A", "t:B")

		// Ahead of what waits.
		rc.Set(inboxtest.Status(500))
		i.keep("t", "C")
		i.keep("t", "D")
		time.Sleep(time.Minute)
		if err := i.Redeliver(1, true); err != nil {
			t.Error(err)
		}
		if err := i.Redeliver(1, true); err != nil { // tried now
			t.Error(err)
		}
		rc.Set(nil)
		time.Sleep(time.Hour)
		rc.Want(t, "t:A", "t:B", "t:B", "t:A", "t:B", "t:A", "t:C", "t:D")
	})
}

func TestDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(500))
		i := open(t, config(dir, rc))
		for _, body := range []string{"A", "B", "C"} {
			i.keep("t", body)
		}
		time.Sleep(time.Minute)
		if err := i.Discard(1); err != nil { // the one that is tried
			t.Error(err)
		}
		if err := i.Discard(3); err != nil { // the lane's last
			t.Error(err)
		}
		for id, want := range map[uint64]error{1: record.ErrFinished, 3: record.ErrFinished, 9: record.ErrNotFound} {
			if err := i.Discard(id); !errors.Is(err, want) {
				t.Errorf("%d: %v, want %v", id, err, want)
			}
		}
		i.want(record.Discarded, record.Waiting, record.Discarded)
		if item, _ := i.Show(1); item.Why == "" || len(item.Attempts) == 0 {
			t.Errorf("%+v", item)
		}
		rc.Set(nil)
		rc.Slow(time.Hour)
		for before := len(rc.Tried()); len(rc.Tried()) == before; {
			time.Sleep(time.Second)
		}
		if err := i.Discard(2); !errors.Is(err, record.ErrBusy) {
			t.Errorf("while it is being delivered: %v", err)
		}
		time.Sleep(time.Hour)
		i.stop()

		i = open(t, config(dir, rc))
		i.want(record.Discarded, record.Delivered, record.Discarded)
		rc.Want(t, "t:B")
		if i.keep("t", "C") {
			t.Error("C was discarded: the receiver never got it")
		}
	})
}

// A webhook is discarded while a note of its last try is not written yet: that must not
// bring it back.
func TestDiscardedStaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(500))
		i := open(t, config(dir, rc))
		i.keep("t", "A")
		i.slowDisk(time.Minute) // some tries are made meanwhile
		go i.keep("other", "A")
		synctest.Wait()
		if err := i.Discard(1); err != nil {
			t.Fatal(err)
		}
		i.slowDisk(0)
		i.want(record.Discarded, record.Waiting)
		if item, _ := i.Show(1); len(item.Attempts) < 3 {
			t.Errorf("%d attempts", len(item.Attempts))
		}
		i.stop()
		open(t, config(dir, rc)).want(record.Discarded, record.Waiting)
	})
}

// A parked webhook is sent again while the writer has not written yet that it was
// superseded: what was answered holds.
func TestRedeliveryOfWhatWasJustSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(422))
		i := open(t, config(dir, rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.Set(nil)
		rc.Slow(time.Second / 2)
		i.slowDisk(time.Second)
		i.keep("t", "B")
		go i.keep("other", "A")
		synctest.Wait()
		if err := i.Redeliver(1, true); err != nil {
			t.Fatal(err)
		}
		i.slowDisk(0)
		time.Sleep(time.Minute)
		rc.Want(t, "t:B", "other:A", "t:A")
		i.want(record.Delivered, record.Delivered, record.Delivered)
		i.stop()
		open(t, config(dir, rc)).want(record.Delivered, record.Delivered, record.Delivered)
	})
}

// What is counted as parked is shown as parked, before it is written: the writer may take a
// while.
func TestWhatIsShownIsWhatIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(422))
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		i.want(record.Parked) // which compares what is shown with what is counted, at this very moment
		if item, err := i.Show(1); err != nil || item.State != record.Parked || len(item.Attempts) != 1 {
			t.Errorf("%+v, %v", item, err)
		}
		if parked, err := i.List(record.Filter{State: record.Parked}); err != nil || len(parked) != 1 {
			t.Errorf("%+v, %v", parked, err)
		}
		rc.Set(nil)
		i.keep("t", "B")
		i.want(record.Superseded, record.Delivered)
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		keep := func(platform, tenant string) bool {
			w := inboxtest.Webhook(tenant, "A")
			w.Lane.Platform = platform
			return i.keepWebhook(w)
		}
		for _, platform := range []string{"p", "q", ""} {
			keep(platform, "t")
			keep(platform, "u")
		}
		time.Sleep(time.Second)
		p, none := "p", ""
		for _, tc := range []struct {
			platform *string
			tenant   string
			want     int
		}{{&p, "t", 1}, {&p, "t", 0}, {&none, "t", 1}, {nil, "t", 1}, {nil, "nobody", 0}, {nil, "u", 3}} {
			if n, err := i.Forget(tc.platform, tc.tenant); n != tc.want || err != nil {
				t.Errorf("%v: %d, %v", tc, n, err)
			}
		}
		if keep("p", "t") {
			t.Error("dropped, though forgotten")
		}
	})
}

// The lane's last was discarded, and something before it still waits: what is sent again is
// not what the receiver gets last.
func TestRedeliveryBeforeWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(500))
		i.keep("t", "B")
		i.keep("t", "C")
		time.Sleep(time.Second)
		if err := i.Discard(3); err != nil {
			t.Fatal(err)
		}
		if err := i.Redeliver(1, true); err != nil {
			t.Fatal(err)
		}
		if i.keep("t", "A") {
			t.Error("a copy of A was dropped; the receiver gets B after it")
		}
		if err := i.Redeliver(3, true); err != nil { // it is newer than B: not ahead of that
			t.Fatal(err)
		}
		rc.Set(nil)
		time.Sleep(time.Hour)
		rc.Want(t, "t:A", "t:A", "t:B", "t:C", "t:A")
	})
}
