package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/webhookgate"
)

// receiver notes what it gets, and answers as told.
type receiver struct {
	mu       sync.Mutex
	got      []string                                                // tenant:body, as accepted
	tries    []time.Time                                             // of all
	answer   func(w *webhookgate.Webhook, n int) webhookgate.Attempt // n counts from 1; nil: 200
	underway int
	most     int // at once
	delay    time.Duration
}

func (r *receiver) try(ctx context.Context, w *webhookgate.Webhook) webhookgate.Attempt {
	r.mu.Lock()
	r.tries = append(r.tries, time.Now())
	r.underway++
	r.most = max(r.most, r.underway)
	n, answer, delay := len(r.tries), r.answer, r.delay
	r.mu.Unlock()
	defer func() { r.mu.Lock(); r.underway--; r.mu.Unlock() }()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return webhookgate.Attempt{Err: ctx.Err()}
	}
	a := webhookgate.Attempt{Status: 200}
	if answer != nil {
		a = answer(w, n)
	}
	if a.Accepted() {
		r.mu.Lock()
		r.got = append(r.got, w.Lane.Tenant+":"+string(w.Body))
		r.mu.Unlock()
	}
	return a
}

func (r *receiver) set(answer func(*webhookgate.Webhook, int) webhookgate.Attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) accepted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.got...)
}

func status(code int) func(*webhookgate.Webhook, int) webhookgate.Attempt {
	return func(*webhookgate.Webhook, int) webhookgate.Attempt { return webhookgate.Attempt{Status: code} }
}

var errDown = errors.New("connection refused")

func refusing(*webhookgate.Webhook, int) webhookgate.Attempt {
	return webhookgate.Attempt{Err: errDown}
}

// config is that of a test's inbox in dir.
func config(dir string, r *receiver) Config {
	return Config{
		URL: "file:" + filepath.Join(dir, "inbox.db"), Try: r.try, Attempts: 20, MaxAge: 72 * time.Hour, Concurrency: 32,
		DedupSize: 100, DedupWindow: 10 * time.Minute, Log: slog.New(slog.DiscardHandler),
	}
}

// running is an inbox that delivers.
type running struct {
	*Inbox
	t    *testing.T
	stop func() // as an orderly end
}

func open(t *testing.T, cfg Config) *running {
	t.Helper()
	i, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { i.Run(ctx, context.Background()) })
	r := &running{Inbox: i, t: t}
	r.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

var counter struct {
	sync.Mutex
	n int
}

func webhook(tenant, body string) *webhookgate.Webhook {
	counter.Lock()
	defer counter.Unlock()
	counter.n++
	return &webhookgate.Webhook{
		ID: fmt.Sprintf("id-%d", counter.n), Type: webhookgate.TenantProvisioningChange,
		Lane: webhookgate.Lane{Platform: "p", Tenant: tenant}, Snapshot: true,
		Digest: sha256.Sum256([]byte(body)), Body: []byte(body), Received: time.Now(),
		Header: http.Header{"X-Test": {"1"}},
	}
}

// keep takes a webhook in and says whether it was a duplicate.
func (r *running) keep(tenant, body string) bool {
	r.t.Helper()
	dup, err := r.Keep(webhook(tenant, body))
	if err != nil {
		r.t.Fatal(err)
	}
	return dup != ""
}

func (r *running) want(states ...State) {
	r.t.Helper()
	synctest.Wait()
	time.Sleep(2 * settleDelay) // updates wait for company
	synctest.Wait()
	entries, err := r.List(Filter{})
	if err != nil {
		r.t.Fatal(err)
	}
	got := make([]State, len(entries))
	for i, e := range entries {
		got[len(entries)-1-i] = e.State
	}
	if fmt.Sprint(got) != fmt.Sprint(states) {
		r.t.Errorf("states %v, want %v", got, states)
	}
}

func wantGot(t *testing.T, r *receiver, want ...string) {
	t.Helper()
	if got := r.accepted(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the receiver accepted %v, want %v", got, want)
	}
}

func TestDeliversInOrderAndDedups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{delay: time.Second}
		i := open(t, config(t.TempDir(), rc))
		for _, step := range []struct {
			body string
			dup  bool
		}{{"A", false}, {"A", true}, {"B", false}, {"A", false}, {"A", true}} {
			if got := i.keep("t", step.body); got != step.dup {
				t.Errorf("%s: duplicate %v", step.body, got)
			}
		}
		time.Sleep(10 * time.Second)
		wantGot(t, rc, "t:A", "t:B", "t:A")
		if !i.keep("t", "A") {
			t.Error("a copy within the window was taken in")
		}
		time.Sleep(10 * time.Minute)
		if i.keep("t", "A") {
			t.Error("a copy after the window was dropped")
		}
		time.Sleep(2 * time.Second)
		i.want(Delivered, Delivered, Delivered, Delivered)
	})
}

// What waits, how it was tried, and what the lanes remember survive a restart.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(receiver)
		i := open(t, config(dir, rc))
		i.keep("held", "A")
		time.Sleep(time.Second)
		rc.set(status(500))
		i.keep("t", "A")
		time.Sleep(time.Second)
		i.keep("t", "B")
		i.stop()

		i = open(t, config(dir, rc))
		if _, err := Open(config(dir, rc)); err == nil || !strings.Contains(err.Error(), "another usher has it open") {
			t.Errorf("two ushers on one file: %v", err)
		}
		if !i.keep("held", "A") {
			t.Error("what the receiver holds was forgotten")
		}
		if !i.keep("t", "B") {
			t.Error("the tail that waits was forgotten")
		}
		if item, err := i.Show(2); err != nil || item.Tries == 0 || len(item.Attempts) != item.Tries {
			t.Errorf("the tries were forgotten: %+v, %v", item, err)
		}
		rc.set(nil)
		time.Sleep(10 * time.Minute)
		wantGot(t, rc, "held:A", "t:A", "t:B")
		if item, err := i.Show(3); err != nil || item.Previous == nil || item.Previous.ID != 2 || string(item.Previous.Body) != "A" || item.Header.Get("X-Test") != "1" {
			t.Errorf("%+v, %v", item, err)
		}
	})
}

func TestParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: status(422)}
		cfg := config(t.TempDir(), rc)
		cfg.MaxAge = 4 * time.Hour
		i := open(t, cfg)
		i.keep("t", "A")
		i.want(Parked)
		if i.keep("t", "A") {
			t.Error("a parked webhook is still remembered")
		}
		i.want(Parked, Parked)
		rc.set(nil)
		i.keep("t", "B")
		i.want(Superseded, Superseded, Delivered)

		rc.set(status(500))
		i.keep("u", "A")
		time.Sleep(3 * time.Hour)
		i.want(Superseded, Superseded, Delivered, Parked)
		if item, _ := i.Show(4); item.Tries != 20 || len(item.Attempts) != keptAttempts || item.Why == "" {
			t.Errorf("%+v", item)
		}

		// While the receiver is down the tries don't count, the age does.
		rc.set(refusing)
		i.keep("v", "A")
		time.Sleep(3 * time.Hour)
		i.want(Superseded, Superseded, Delivered, Parked, Waiting)
		time.Sleep(2 * time.Hour)
		i.want(Superseded, Superseded, Delivered, Parked, Parked)
	})
}

func TestRedelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		for _, body := range []string{"A", "B"} {
			i.keep("t", body)
			time.Sleep(time.Second)
		}
		overwrite := new(OverwriteError)
		if err := i.Redeliver(1, false); !errors.As(err, &overwrite) || overwrite.Latest.ID != 2 {
			t.Errorf("an old snapshot over a new one: %v", err)
		}
		if err := i.Redeliver(9, false); !errors.Is(err, ErrNotFound) {
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
		wantGot(t, rc, "t:A", "t:B", "t:B", "t:A")
		if i.keep("t", "B") {
			t.Error("B was taken for what the receiver holds, but it holds A")
		}
		time.Sleep(time.Second)
		wantGot(t, rc, "t:A", "t:B", "t:B", "t:A", "t:B")

		// Ahead of what waits.
		rc.set(status(500))
		i.keep("t", "C")
		i.keep("t", "D")
		time.Sleep(time.Minute)
		if err := i.Redeliver(1, true); err != nil {
			t.Error(err)
		}
		if err := i.Redeliver(1, true); !errors.Is(err, ErrWaiting) {
			t.Errorf("got %v", err)
		}
		rc.set(nil)
		time.Sleep(time.Hour)
		wantGot(t, rc, "t:A", "t:B", "t:B", "t:A", "t:B", "t:A", "t:C", "t:D")
	})
}

func TestKeepLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: refusing}
		cfg := config(t.TempDir(), rc)
		cfg.KeepLatest = true
		i := open(t, cfg)
		for _, body := range []string{"A", "B", "C", "D"} {
			i.keep("t", body)
			time.Sleep(time.Millisecond)
		}
		rc.set(nil)
		time.Sleep(time.Minute)
		wantGot(t, rc, "t:D")
		i.want(Superseded, Superseded, Superseded, Delivered)

		// What is being delivered when a newer one comes is superseded when it fails.
		rc.slow(time.Second)
		rc.set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if string(w.Body) == "E" {
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		i.keep("t", "E")
		time.Sleep(time.Second / 2)
		i.keep("t", "F")
		i.want(Superseded, Superseded, Superseded, Delivered, Waiting, Waiting)
		time.Sleep(time.Minute)
		wantGot(t, rc, "t:D", "t:F")
		i.want(Superseded, Superseded, Superseded, Delivered, Superseded, Delivered)
		if s := i.Stats(); s.Pending != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// 5,000 tenants wait while the receiver is down: it is probed, not hammered; once it
// is back all is delivered soon, and never more at once than allowed.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: refusing, delay: 10 * time.Millisecond}
		i := open(t, config(t.TempDir(), rc))
		var wg sync.WaitGroup
		for n := range 5000 {
			wg.Go(func() { i.keep(fmt.Sprint("t", n), "A") })
		}
		wg.Wait()
		time.Sleep(time.Minute)
		rc.mu.Lock()
		tries := len(rc.tries)
		rc.mu.Unlock()
		if tries > 100 {
			t.Errorf("%d tries in a minute of outage", tries)
		}
		rc.set(nil)
		back := time.Now()
		time.Sleep(longestProbe + time.Second)
		if len(rc.accepted()) == 0 {
			t.Error("the receiver's return was not noticed")
		}
		for len(rc.accepted()) < 5000 {
			time.Sleep(time.Second)
			if time.Since(back) > time.Minute {
				t.Fatalf("only %d delivered in a minute", len(rc.accepted()))
			}
		}
		if rc.most > 32 {
			t.Errorf("%d deliveries at once", rc.most)
		}
		if s := i.Stats(); s.Pending != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Also a single tenant whose own pauses have become long learns soon that the
// receiver is back.
func TestReturnIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: refusing}
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(30 * time.Minute)
		rc.set(nil)
		time.Sleep(longestProbe)
		synctest.Wait()
		wantGot(t, rc, "t:A")
	})
}

// A tenant that the receiver can never answer in time does not profit from the others'
// success: it keeps its own, long pauses.
func TestLaneWithATroubleOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		rc := &receiver{answer: func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if w.Lane.Tenant == "bad" {
				tries++
				return webhookgate.Attempt{Err: context.DeadlineExceeded}
			}
			return webhookgate.Attempt{Status: 200}
		}}
		i := open(t, config(t.TempDir(), rc))
		i.keep("bad", "A")
		for n := range 600 {
			i.keep("good", fmt.Sprint(n))
			time.Sleep(time.Second)
		}
		rc.mu.Lock()
		defer rc.mu.Unlock()
		if len(rc.got) != 600 || tries < 5 || tries > 30 {
			t.Errorf("%d accepted; %d tries of the bad one in ten minutes", len(rc.got), tries)
		}
	})
}

// A receiver that says when it wants to be asked again is not asked before.
func TestRetryAfterIsHeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := &receiver{answer: func(*webhookgate.Webhook, int) webhookgate.Attempt {
			return webhookgate.Attempt{Status: 503, RetryAfter: 10 * time.Minute}
		}}
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Hour + time.Minute)
		rc.mu.Lock()
		defer rc.mu.Unlock()
		if n := len(rc.tries); n < 4 || n > 7 {
			t.Errorf("%d tries in an hour", n)
		}
	})
}

func TestSyncFailureIsFinal(t *testing.T) {
	dir := t.TempDir()
	rc := new(receiver)
	i, err := Open(config(dir, rc))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Keep(webhook("t", "A")); err != nil {
		t.Fatal(err)
	}
	s := i.store.(*boltStore)
	healthy := s.update
	s.update = func(func(*bbolt.Tx) error) error { return errors.New("input/output error") }
	if _, err := i.Keep(webhook("t", "B")); err == nil {
		t.Error("taken in though the sync failed")
	}
	s.update = healthy
	if _, err := i.Keep(webhook("t", "C")); err == nil || i.Err() == nil {
		t.Error("a sync that failed was tried again")
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	i, err = Open(config(dir, rc))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if entries, _ := i.List(Filter{}); len(entries) != 1 || entries[0].ID != 1 {
		t.Errorf("after a restart: %+v", entries)
	}
}
