package main

import (
	"context"
	"fmt"
	"time"
)

const (
	largeCount = 300
	largeSize  = 900 << 10
	slowAnswer = 100 * time.Millisecond
)

// limits measures what large webhooks take, and what replicas add to each other.
func limits(ctx context.Context, b *bench) ([]*table, error) {
	t := &table{title: "Large webhooks and replicas", header: []string{"", "aim", "reached"}}
	for _, w := range []way{file, database} {
		b.say("large webhooks, %s", w.name)
		most, err := b.large(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		what := fmt.Sprintf("memory, %d webhooks of %d KiB, %s", largeCount, largeSize>>10, w.name)
		t.add(what, "≤ 300 MB", megabytes([]int64{most})+" MB")
	}
	b.say("replicas")
	one, err := b.replicas(ctx, 1)
	if err != nil {
		return nil, err
	}
	three, err := b.replicas(ctx, 3)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("three replicas over one, to a receiver that takes %v, PostgreSQL", slowAnswer)
	t.add(what, "≥ 2.20", fmt.Sprintf("%.2f (%.0f/s, %.0f/s)", three/one, three, one))
	t.note("Memory is usher's RSS at its highest, while the webhooks wait and are then delivered. " +
		"The replicas share the machine, with 32 deliveries at once each.")
	return []*table{t}, nil
}

// large has large webhooks wait for a receiver that is down, lets it come back, and returns the highest memory.
func (b *bench) large(ctx context.Context, w way) (most int64, err error) {
	rc, err := newReceiver()
	if err != nil {
		return 0, err
	}
	defer rc.down()
	inbox, stop, err := b.inboxFor(w)
	if err != nil {
		return 0, err
	}
	defer stop()
	u, err := b.start(ctx, inbox, "USHER_WEBHOOK_FORWARD_URL=http://"+rc.address+"/")
	if err != nil {
		return 0, err
	}
	defer u.stop()
	rc.down()
	highest := watchMemory(u.process)
	f, err := newFleet(u.gate, "large", 8, (largeCount+7)/8)
	if err != nil {
		return 0, err
	}
	defer f.close()
	l, err := f.each(func(_ int, s *sender, l *load) (err error) {
		s.padding = largeSize
		for i := 0; i < len(s.tenants) && err == nil; i++ {
			err = s.send(l)
		}
		return err
	})
	if err != nil || l.refused > 0 {
		return 0, fmt.Errorf("%d refused: %w", l.refused, err)
	}
	if err := rc.up(); err != nil {
		return 0, err
	}
	for began := time.Now(); rc.delivered.Load() < int64(l.acknowledged); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			return 0, fmt.Errorf("%d of %d were delivered", rc.delivered.Load(), l.acknowledged)
		}
	}
	return highest(), nil
}

// replicas is how many webhooks a second so many replicas deliver of what waits.
func (b *bench) replicas(ctx context.Context, n int) (rate float64, err error) {
	rc, err := newReceiver()
	if err != nil {
		return 0, err
	}
	defer rc.down()
	inbox, stop, err := b.inboxFor(database)
	if err != nil {
		return 0, err
	}
	defer stop()
	settings := []string{"USHER_WEBHOOK_FORWARD_URL=http://" + rc.address + "/"}
	u, err := b.start(ctx, inbox, settings...)
	if err != nil {
		return 0, err
	}
	f, err := newFleet(u.gate, "first", 1, 1) // its platform is known from then on
	if err == nil {
		err = f[0].send(new(load))
	}
	f.close()
	u.stop()
	if err != nil {
		return 0, err
	}
	if err := fill(ctx, inbox, "crm", "slow", 20_000, true); err != nil {
		return 0, err
	}
	rc.delay = slowAnswer
	for range n {
		u, err := b.start(ctx, inbox, append(settings, "USHER_SHUTDOWN_GRACE=2s")...)
		if err != nil {
			return 0, err
		}
		defer u.stop()
	}
	time.Sleep(2 * time.Second)
	// What was made by SQL has no number, so it is strange to the receiver.
	began, before := time.Now(), rc.strange.Load()
	time.Sleep(pick(b, 4*time.Second, 8*time.Second))
	return float64(rc.strange.Load()-before) / time.Since(began).Seconds(), nil
}
