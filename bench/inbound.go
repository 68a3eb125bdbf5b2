package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// senderCounts are how many send at once.
var senderCounts = []int{1, 16, 64, 256}

// yard is where the webhook gate is measured.
type yard struct {
	*bench
	billing  string
	receiver *receiver
	fleets   int // so far: their tenants are named by it
	refused  int // webhooks not answered with 200, in all
}

// inbound measures the webhook gate: passing through, durable, and beside both what
// the disk gives to a program that syncs once for each webhook.
func inbound(ctx context.Context, b *bench) ([]*table, error) {
	billing, stop := startBilling()
	defer stop()
	rc, err := newReceiver()
	if err != nil {
		return nil, err
	}
	y := &yard{bench: b, billing: billing, receiver: rc}
	defer func() { y.receiver.down() }()

	passing, err := y.gate(ctx, nil, "", b.log)
	if err != nil {
		return nil, err
	}
	defer passing.stop()
	durable, err := y.gate(ctx, nil, filepath.Join(b.dir, "inbox.db"), b.log)
	if err != nil {
		return nil, err
	}
	defer durable.stop()

	// First, as it fills the inbox's history: what follows includes its trimming.
	y.say("memory")
	growth, err := y.growth(ctx, durable)
	if err != nil {
		return nil, err
	}
	m := &measurements{passing: make(map[int][]sample), durable: make(map[int][]sample), plain: make(map[int][]float64)}
	if err := y.rates(ctx, m, passing, durable); err != nil {
		return nil, err
	}
	if err := y.quiet(ctx, m); err != nil {
		return nil, err
	}
	y.say("the courier alone")
	for range pick(b, 1, 3) {
		rate, err := y.alone(ctx, durable)
		if err != nil {
			return nil, err
		}
		m.alone = append(m.alone, rate)
	}
	y.say("syncs")
	if m.syncsEach, err = y.syncsEach(ctx); err != nil {
		return nil, err
	}
	y.say("an outage")
	out, err := y.outage(ctx, durable)
	if err != nil {
		return nil, err
	}
	return append([]*table{m.aims(out, growth), m.accepted(), m.deliveries(), m.levels(y.log), out.table(), growth.table()}, y.faults()...), nil
}

// gate starts an usher: durable where there is a file for its inbox.
func (y *yard) gate(ctx context.Context, under []string, file, level string, more ...string) (*usher, error) {
	settings := append([]string{
		"USHER_BASE_URL=" + y.billing,
		"USHER_WEBHOOK_FORWARD_URL=http://" + y.receiver.address + "/",
		"USHER_LOG_LEVEL=" + level,
	}, more...)
	if file != "" {
		settings = append(settings, "USHER_WEBHOOK_INBOX=file:"+file)
	}
	u, err := y.start(ctx, under, settings...)
	if err != nil {
		return nil, err
	}
	u.inbox = file
	return u, nil
}

// fleet connects senders whose tenants nobody has heard of yet.
func (y *yard) fleet(u *usher, senders, tenants int) (fleet, error) {
	y.fleets++
	return newFleet(u.gate, fmt.Sprintf("bench-%d", y.fleets), senders, tenants)
}

// faults is empty unless something went wrong that must not, at any time of the run.
func (y *yard) faults() []*table {
	t := &table{title: "What must not be", header: []string{"", "webhooks"}}
	for _, f := range []struct {
		what string
		n    int64
	}{
		{"refused", int64(y.refused)}, {"out of order", y.receiver.disorder.Load()}, {"not as sent", y.receiver.strange.Load()},
	} {
		if f.n > 0 {
			t.add(f.what, fmt.Sprint(f.n))
		}
	}
	if t.rows == nil {
		return nil
	}
	return []*table{t}
}

// rates measures passing, durable and plain in turns.
func (y *yard) rates(ctx context.Context, m *measurements, passing, durable *usher) error {
	window := pick(y.bench, 400*time.Millisecond, 2*time.Second)
	rounds := pick(y.bench, 3, 5)
	for round := range rounds {
		y.say("round %d of %d", round+1, rounds)
		for _, n := range senderCounts {
			for turn := range 3 { // nobody is always the first
				var err error
				var s sample
				switch (round + turn) % 3 {
				case 0:
					s, err = y.sample(ctx, passing, n, window)
					m.passing[n] = append(m.passing[n], s)
				case 1:
					s, err = y.sample(ctx, durable, n, window)
					m.durable[n] = append(m.durable[n], s)
				case 2:
					var rate float64
					rate, err = appendAndSync(filepath.Join(y.dir, "plain"), n, window)
					m.plain[n] = append(m.plain[n], rate)
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sample is one measurement of a gate.
type sample struct {
	load
	delivered float64 // deliveries per second meanwhile
	backlog   [4]int  // after each quarter of the time
	all       float64 // webhooks per second, counted until the last was delivered
	cpu       float64 // of usher, in seconds per webhook, counted the same way
	commits   float64 // transactions for each webhook, meanwhile
}

func (y *yard) sample(ctx context.Context, u *usher, senders int, window time.Duration) (s sample, err error) {
	f, err := y.fleet(u, senders, tenantsEach)
	if err != nil {
		return s, err
	}
	defer f.close()
	var watch sync.WaitGroup
	defer watch.Wait()
	durable := u.inbox != ""
	began, cpu, before, commits := time.Now(), cpuOf(u.pid()), y.receiver.delivered.Load(), transactions(u.inbox)
	if durable {
		watch.Go(func() {
			for i := range s.backlog {
				time.Sleep(time.Until(began.Add(window * time.Duration(i+1) / 4)))
				s.backlog[i], _ = u.pending() // where that fails, so does the rest
			}
		})
	}
	if s.load, err = f.run(ctx, window, 0); err != nil {
		return s, err
	}
	y.refused += s.refused
	s.commits = float64(transactions(u.inbox)-commits) / float64(max(1, s.acknowledged))
	s.delivered = float64(y.receiver.delivered.Load()-before) / s.took.Seconds()
	watch.Wait()
	if durable {
		if err := u.drained(ctx); err != nil {
			return s, err
		}
	}
	s.all = float64(s.acknowledged) / time.Since(began).Seconds()
	s.cpu = (cpuOf(u.pid()) - cpu) / float64(max(1, s.acknowledged))
	return s, nil
}

// recordSize is what the inbox writes of one webhook, about.
const recordSize = 1700

// appendAndSync is what a program gets done that appends each webhook to a file and
// syncs it, senders waiting for each other.
func appendAndSync(path string, senders int, window time.Duration) (rate float64, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer os.Remove(path)
	defer f.Close()
	record := make([]byte, recordSize)
	var mu sync.Mutex // guards what follows, and f
	var failed error
	count := 0
	var all sync.WaitGroup
	began := time.Now()
	for range senders {
		all.Go(func() {
			for time.Since(began) < window {
				mu.Lock()
				if _, err := f.Write(record); err != nil {
					failed = err
				} else if err := f.Sync(); err != nil {
					failed = err
				}
				count++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return float64(count) / time.Since(began).Seconds(), failed
}
