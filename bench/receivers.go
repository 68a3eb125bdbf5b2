package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	wellSenders    = 16
	troubleSenders = 64 // more than the receiver that hangs may have in flight
	troubleRate    = 25 // webhooks per second: so few that taking them in costs next to nothing
	threesInflight = 96 // of which each of the three receivers has its share
)

// threesome is an usher in front of three receivers: one takes webhooks, one hangs, and
// nobody listens where the third should be.
type threesome struct {
	*usher
	well *receiver
}

// severalReceivers measures whether a receiver that hangs and one that refuses cost a third
// anything: its deliveries beside those of an usher where only the third has something to
// take. Both ushers run all the time, so that whatever else the machine does hits both.
func severalReceivers(ctx context.Context, b *bench) ([]*table, error) {
	t := &table{
		title:  "Three receivers, of which one hangs and one refuses",
		header: []string{"", "delivered/s, alone", "amid trouble", "ratio", "p99 alone, ms", "amid trouble"},
	}
	for _, way := range []way{passing, file, database} {
		b.say("three receivers, %s", way.name)
		if err := b.compareThrees(ctx, t, way); err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
	}
	t.note("Deliveries to the third receiver: %d senders, and %d webhooks a second for each of the two "+
		"others. The aim is a ratio of 1.", wellSenders, troubleRate)
	return []*table{t}, nil
}

func (b *bench) compareThrees(ctx context.Context, t *table, way way) error {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		return err
	}
	defer silent.Close()
	nobody, err := freePorts(1)
	if err != nil {
		return err
	}
	var both [2]*threesome
	for i := range both {
		inbox, stop, err := b.inboxFor(way)
		if err != nil {
			return err
		}
		defer stop()
		if both[i], err = b.startThree(ctx, inbox, silent.Addr().String(), nobody[0]); err != nil {
			return err
		}
		defer both[i].well.down()
		defer both[i].stop()
	}
	ended := both[1].trouble()
	defer ended()
	time.Sleep(3 * time.Second) // until the one that hangs has as many as it may have in flight

	var rates [2][]float64
	var p99s [2][]time.Duration
	var ratios []float64
	for round := range pick(b, 3, 5) {
		for turn := range both { // nobody is always the first
			i := (round + turn) % 2
			rate, p99, err := both[i].measure(ctx, round, pick(b, time.Second, 2*time.Second))
			if err != nil {
				return err
			}
			rates[i], p99s[i] = append(rates[i], rate), append(p99s[i], p99)
		}
		ratios = append(ratios, rates[1][round]/rates[0][round])
	}
	nanos := func(d time.Duration) float64 { return float64(d) }
	t.add(way.name, number(median(rates[0], self)), number(median(rates[1], self)), times(median(ratios, self)),
		millis(time.Duration(median(p99s[0], nanos))), millis(time.Duration(median(p99s[1], nanos))))
	return nil
}

func (b *bench) startThree(ctx context.Context, inbox, silent, nobody string) (*threesome, error) {
	well, err := newReceiver()
	if err != nil {
		return nil, err
	}
	// Nobody waits for what hangs when it is over.
	settings := []string{fmt.Sprint("USHER_WEBHOOK_MAX_INFLIGHT=", threesInflight), "USHER_SHUTDOWN_GRACE=1s"}
	for i, r := range []struct{ platform, address string }{
		{"crm", well.address},
		{"hangs", silent},
		{"refuses", nobody},
	} {
		prefix := fmt.Sprintf("USHER_WEBHOOK_RECEIVERS_%d_", i)
		settings = append(settings, prefix+"PLATFORMS="+r.platform, prefix+"FORWARD_URL=http://"+r.address+"/")
	}
	u, err := b.start(ctx, inbox, settings...)
	if err != nil {
		well.down()
		return nil, err
	}
	return &threesome{usher: u, well: well}, nil
}

// trouble sends to the other two receivers until what it returns is called. What becomes of
// these webhooks is their own business.
func (u *threesome) trouble() (end func()) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	var fleets []fleet
	for _, platform := range []string{"hangs", "refuses"} {
		f, err := newFleet(u.gate, platform, troubleSenders, 1)
		if err != nil {
			continue // the measurement will fail, too
		}
		for _, s := range f {
			s.platform = platform
		}
		fleets = append(fleets, f)
		running.Go(func() { _, _ = f.steady(stop, troubleRate) })
	}
	return func() {
		close(stop)
		for _, f := range fleets {
			f.close() // those that wait for an answer wait no longer
		}
		running.Wait()
	}
}

// measure is one round at the receiver that is well.
func (u *threesome) measure(
	ctx context.Context, round int, length time.Duration,
) (rate float64, p99 time.Duration, err error) {
	f, err := newFleet(u.gate, fmt.Sprintf("well-%d", round), wellSenders, tenantsEach)
	if err != nil {
		return 0, 0, err
	}
	defer f.close()
	began, before := time.Now(), u.well.delivered.Load()
	l, err := f.run(ctx, length)
	if err != nil {
		return 0, 0, err
	}
	if l.refused > 0 {
		return 0, 0, fmt.Errorf("%d webhooks were refused, though their receiver is well", l.refused)
	}
	delivered := func() int64 { return u.well.delivered.Load() - before }
	for delivered() < int64(l.acknowledged) && time.Since(began) < 5*length && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return float64(delivered()) / time.Since(began).Seconds(), quantile(l.latencies, 0.99), ctx.Err()
}
