package courier

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// desk is a courier that runs, and a Term that a test has in its hand.
type desk struct {
	*Courier
	t    *testing.T
	stop func() // as an orderly end
	cut  func() // what is under way

	mu       sync.Mutex
	contents map[uint64]*webhookgate.Webhook
	status   map[uint64]record.Status // as noted
	notes    []string                 // id:state, in order
	next     uint64
	held     func() bool   // nil: always
	read     func() error  // nil: it can be read
	noting   time.Duration // 0: noted before Note returns
}

func (d *desk) Held() bool {
	d.mu.Lock()
	held := d.held
	d.mu.Unlock()
	return held == nil || held()
}

func (d *desk) Content(_ context.Context, id uint64) (*webhookgate.Webhook, error) {
	d.mu.Lock()
	w, read := d.contents[id], d.read
	d.mu.Unlock()
	if read != nil {
		if err := read(); err != nil {
			return nil, err
		}
	}
	if w == nil {
		return nil, record.ErrNotFound
	}
	return w, nil
}

func (d *desk) Note(r record.Record, _ *webhookgate.Webhook, noted func()) {
	d.mu.Lock()
	delay := d.noting
	d.mu.Unlock()
	write := func() {
		d.mu.Lock()
		d.status[r.ID] = r.Status
		d.notes = append(d.notes, fmt.Sprint(r.ID, ":", r.Status.State))
		d.mu.Unlock()
		noted()
	}
	if delay == 0 {
		write()
		return
	}
	time.AfterFunc(delay, write)
}

func (d *desk) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// noted are all notes so far.
func (d *desk) noted() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.notes)
}

// stands is how a webhook stands, as noted.
func (d *desk) stands(id uint64) record.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status[id]
}

// full is the longest pause there is.
func full(ceiling time.Duration) time.Duration { return ceiling }

func config(r *inboxtest.Receiver) Config {
	return Config{
		Receivers: []Receiver{{Name: "main", Try: r.Try, Concurrency: 32}},
		Attempts:  20, MaxAge: 72 * time.Hour, Log: slog.New(slog.DiscardHandler),
	}
}

func run(t *testing.T, cfg Config) *desk {
	d := &desk{
		Courier: New(cfg), t: t,
		contents: make(map[uint64]*webhookgate.Webhook), status: make(map[uint64]record.Status),
	}
	d.Begin(d, nil)
	soft, stop := context.WithCancel(context.Background())
	hard, cut := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { d.Run(soft, hard) })
	d.stop, d.cut = func() { stop(); wg.Wait() }, cut
	t.Cleanup(func() { cut(); d.stop() })
	return d
}

// send has a webhook taken in and returns its id.
func (d *desk) send(tenant, body string) uint64 {
	w := inboxtest.Webhook(tenant, body)
	return d.sendWebhook(w, w)
}

func (d *desk) sendWebhook(w, whole *webhookgate.Webhook) uint64 {
	d.mu.Lock()
	d.next++
	id := d.next
	d.contents[id] = w
	status := record.Status{State: record.Waiting, Changed: w.Received}
	d.status[id] = status
	d.mu.Unlock()
	d.Take(d, &record.Record{ID: id, Webhook: w, Status: status}, whole, false)
	return id
}

// want compares how everything stands, by what was noted and by what the courier counts.
func (d *desk) want(states ...record.State) {
	d.t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	var got []record.State
	pending, parked := 0, 0
	for id := uint64(1); id <= d.next; id++ {
		switch d.status[id].State {
		case record.Waiting:
			pending++
		case record.Parked:
			parked++
		}
		got = append(got, d.status[id].State)
	}
	if fmt.Sprint(got) != fmt.Sprint(states) {
		d.t.Errorf("states %v, want %v", got, states)
	}
	if s := d.Stats(); s.Pending != pending || s.Parked != parked {
		d.t.Errorf("%d are counted as pending and %d as parked; noted are %d and %d", s.Pending, s.Parked, pending, parked)
	}
}

func TestParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(422))
		cfg := config(rc)
		cfg.MaxAge = 4 * time.Hour
		d := run(t, cfg)
		d.send("t", "A")
		d.send("t", "B")
		d.want(record.Parked, record.Parked)
		rc.Set(nil)
		d.send("t", "C")
		// Of a parked one's fate the store learns after that of what overtook it.
		d.want(record.Superseded, record.Superseded, record.Delivered)
		if d.stands(3).Receiver != "main" {
			t.Errorf("accepted by %q", d.stands(3).Receiver)
		}

		rc.Set(inboxtest.Status(500))
		d.send("u", "A")
		time.Sleep(3 * time.Hour)
		d.want(record.Superseded, record.Superseded, record.Delivered, record.Parked)
		if s := d.stands(4); s.Tries != 20 || s.Counted != 20 || len(s.Attempts) != record.KeptAttempts || s.Why == "" {
			t.Errorf("%+v", s)
		}

		// While the receiver is down the tries don't count, the age does.
		rc.Set(inboxtest.Refusing)
		d.send("v", "A")
		time.Sleep(3 * time.Hour)
		d.want(record.Superseded, record.Superseded, record.Delivered, record.Parked, record.Waiting)
		if s := d.stands(5); s.Tries < 21 || s.Counted != 0 || len(s.Attempts) != record.KeptAttempts {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Hour)
		d.want(record.Superseded, record.Superseded, record.Delivered, record.Parked, record.Parked)
	})
}

// Waiting behind others never uses up tries.
func TestTriesAreTheFirstsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		d := run(t, config(rc))
		d.send("t", "A")
		d.send("t", "B")
		time.Sleep(2 * time.Hour)
		d.want(record.Waiting, record.Waiting)
		if first := d.stands(1); time.Since(first.Attempts[record.KeptAttempts-1].At) > lastPause+time.Minute {
			t.Errorf("%+v", first)
		}
		if second := d.stands(2); len(second.Attempts) != 0 || second.Tries != 0 {
			t.Errorf("%+v", second)
		}
	})
}

func TestKeepLatest(t *testing.T) {
	for _, noting := range []time.Duration{0, 10 * time.Millisecond} {
		t.Run(fmt.Sprint(noting), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rc := new(inboxtest.Receiver)
				rc.Set(inboxtest.Refusing)
				cfg := config(rc)
				cfg.KeepLatest = true
				d := run(t, cfg)
				d.change(func() { d.noting = noting })
				for _, body := range []string{"A", "B", "C", "D"} {
					d.send("t", body)
					time.Sleep(time.Millisecond)
				}
				rc.Set(nil)
				time.Sleep(time.Minute)
				rc.Want(t, "t:D")
				d.want(record.Superseded, record.Superseded, record.Superseded, record.Delivered)

				// What is being delivered when a newer one comes is superseded when it fails.
				rc.Slow(time.Second)
				rc.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
					if string(w.Body) == "E" {
						return webhookgate.Attempt{Status: 500}
					}
					return webhookgate.Attempt{Status: 200}
				})
				d.send("t", "E")
				time.Sleep(time.Second / 2)
				d.send("t", "F")
				d.want(record.Superseded, record.Superseded, record.Superseded, record.Delivered, record.Waiting, record.Waiting)
				time.Sleep(time.Minute)
				rc.Want(t, "t:D", "t:F")
				d.want(record.Superseded, record.Superseded, record.Superseded, record.Delivered, record.Superseded, record.Delivered)
			})
		})
	}
}

// A lane in which snapshots are superseded all the time keeps its place before others.
func TestSupersedingCostsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Slow(time.Second)
		cfg := config(rc)
		cfg.KeepLatest = true
		cfg.Receivers[0].Concurrency = 1
		d := run(t, cfg)
		for n := range 10 {
			d.send(fmt.Sprint("u", n), "A")
			time.Sleep(time.Millisecond)
		}
		for n := range 300 {
			d.send("t", fmt.Sprint(n))
			time.Sleep(time.Millisecond)
			d.send(fmt.Sprint("v", n), "A")
			time.Sleep(100 * time.Millisecond)
		}
		if got := fmt.Sprint(rc.Accepted()); len(rc.Accepted()) < 20 || rc.Accepted()[10][:2] != "t:" {
			t.Errorf("the receiver got %v", got)
		}
	})
}

func TestConcurrencyOverAllLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Slow(time.Second)
		cfg := config(rc)
		cfg.Receivers[0].Concurrency = 3
		d := run(t, cfg)
		began := time.Now()
		for n := range 30 {
			d.send(fmt.Sprint("t", n), "A")
		}
		for len(rc.Accepted()) < 30 {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if rc.Most() != 3 || time.Since(began) > 12*time.Second {
			t.Errorf("%d at once, done after %v", rc.Most(), time.Since(began))
		}
	})
}

// What waits before the start goes by age, also what is sent again, and whatever the clocks said when that was.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		d := &desk{Courier: New(config(rc)), t: t, contents: make(map[uint64]*webhookgate.Webhook), status: make(map[uint64]record.Status)}
		now := time.Now()
		var all []*record.Record
		for id, again := range []time.Time{now, {}, now.Add(-time.Minute), {}, now.Add(time.Minute), {}} {
			w := inboxtest.Webhook("t", fmt.Sprint(id))
			r := &record.Record{ID: uint64(id), Webhook: w, Status: record.Status{State: record.Waiting, Again: again}}
			if id == 5 {
				r.Status.State = record.Parked
			}
			d.contents[r.ID] = w
			all = append([]*record.Record{r}, all...)
		}
		d.Begin(d, all)
		if s := d.Stats(); s.Pending != 5 || s.Parked != 1 {
			t.Errorf("%+v", s)
		}
		ctx, cancel := context.WithCancel(context.Background())
		go d.Run(ctx, ctx)
		time.Sleep(time.Second)
		cancel()
		rc.Want(t, "t:0", "t:1", "t:2", "t:3", "t:4")
	})
}

// After a restart, or when another replica takes over, the pauses go on from where they were: a webhook that the receiver
// does not take must not use up its tries within minutes because usher was restarted a few times.
func TestPausesOutliveTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(500))
		cfg := config(rc)
		cfg.Pause = full
		d := &desk{Courier: New(cfg), t: t, contents: make(map[uint64]*webhookgate.Webhook), status: make(map[uint64]record.Status)}
		w := inboxtest.Webhook("t", "a")
		d.contents[1] = w
		d.Begin(d, []*record.Record{{ID: 1, Webhook: w, Status: record.Status{
			State: record.Waiting, Tries: 6, Counted: 6, Attempts: []record.Attempt{{At: time.Now(), Status: 500}},
		}}})
		ctx, cancel := context.WithCancel(context.Background())
		go d.Run(ctx, ctx)
		time.Sleep(time.Minute)
		cancel()
		if tries := d.stands(1).Tries; tries != 7 {
			t.Errorf("%d tries after a minute, want one more than before", tries)
		}
	})
}

// Two actions stop a lane at once, a discard and an erasure say. The end of one does not have it go on.
func TestStoppedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		d := run(t, config(rc))
		lane := inboxtest.Webhook("t", "").Lane
		d.Stop(lane)
		d.Stop(lane)
		d.send("t", "A")
		d.GoOn(lane)
		time.Sleep(time.Minute)
		d.want(record.Waiting)
		d.GoOn(lane)
		time.Sleep(time.Second)
		d.want(record.Delivered)
	})
}

// No goroutine for a lane that waits, and none left at the end (synctest sees to that).
func TestEndIsOrderly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Slow(time.Minute)
		d := run(t, config(rc))
		d.send("t", "A")
		d.send("t", "B")
		time.Sleep(time.Second)
		done := make(chan struct{})
		go func() { d.stop(); close(done) }()
		time.Sleep(time.Second)
		select {
		case <-done:
			t.Error("the delivery under way was not waited for")
		default:
		}
		d.cut()
		<-done
		d.want(record.Waiting, record.Waiting)
		if len(d.noted()) != 0 || len(rc.Tried()) != 1 {
			t.Errorf("noted %v after %d tries", d.noted(), len(rc.Tried()))
		}
	})
}
