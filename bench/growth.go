package main

import (
	"context"
	"fmt"
	"time"
)

// growth measures what an inbox costs when a million webhooks wait in it, for a receiver that is down: how soon usher
// is ready, its memory, and how fast it serves another receiver.
func growth(ctx context.Context, b *bench) ([]*table, error) {
	t := &table{
		title:  "An inbox that grows",
		header: []string{"", "waiting", "ready, ms", "MB then", "webhooks/s", "CPU, µs", "p99, ms", "MB"},
		note: "What waits is one webhook each of other tenants, for a receiver that is down. The load is that of 64 senders, as " +
			"under Inbound, to another receiver, until the last one is delivered. MB is memory (RSS), at first and at its highest.",
	}
	for _, w := range inboxes {
		for _, waiting := range []int{0, pick(b, 50_000, 1_000_000)} {
			b.say("growth, %s, %d waiting", w.name, waiting)
			if err := b.grow(ctx, w, waiting, t); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	return []*table{t}, nil
}

func (b *bench) grow(ctx context.Context, w way, waiting int, t *table) error {
	rc, err := newReceiver()
	if err != nil {
		return err
	}
	defer rc.down()
	nobody, err := freePorts(1)
	if err != nil {
		return err
	}
	inbox, stop, err := b.newInbox(w)
	if err != nil {
		return err
	}
	defer stop()
	settings := []string{
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://" + rc.address + "/",
		"USHER_WEBHOOK_RECEIVERS_1_PLATFORMS=away", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL=http://" + nobody[0] + "/",
	}
	u, err := b.start(ctx, inbox, settings...)
	if err != nil {
		return err
	}
	err = fill(ctx, u, "away", waiting)
	u.stop()
	if err != nil {
		return err
	}
	began := time.Now()
	if u, err = b.start(ctx, inbox, settings...); err != nil {
		return err
	}
	defer u.stop()
	ready := time.Since(began)
	time.Sleep(2 * time.Second) // what it does at its start is over
	idle := u.memory()
	g := &gate{way: w, usher: u, rc: rc, fleets: make(map[int]fleet)}
	s, err := g.sample(ctx, 64, pick(b, 2*time.Second, 5*time.Second))
	if err != nil {
		return err
	}
	n, err := u.pending()
	for ; err != nil && time.Since(began) < time.Minute; time.Sleep(time.Second) { // it counts
		n, err = u.pending()
	}
	if err == nil && n < waiting {
		err = fmt.Errorf("only %d webhooks wait", n)
	}
	t.add(w.name, fmt.Sprint(waiting), millis(ready), megabytes(idle), number(s.all), tenths(s.cpu*1e6),
		millis(quantile(s.latencies, 0.99)), megabytes(u.mostMemory()))
	return err
}

// fill sends one webhook of each of so many tenants of a platform, from 64 senders.
func fill(ctx context.Context, u *usher, platform string, tenants int) error {
	const senders = 64
	f := newFleet(u.gate, platform+"-known", senders, (tenants+senders-1)/senders)
	for _, s := range f {
		s.body = func(tenant string, n int) string { return snapshotOf(platform, tenant, 25+n) }
	}
	if err := f.connect(); err != nil {
		return err
	}
	defer f.close()
	l, err := f.each(func(s *sender, l *load) (err error) {
		for range s.tenants {
			if err = s.send(l); err != nil || ctx.Err() != nil {
				break
			}
		}
		return err
	})
	if err == nil && l.refused > 0 {
		err = fmt.Errorf("%d webhooks were not answered with 200", l.refused)
	}
	return err
}
