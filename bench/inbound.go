package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"usher/internal/testkit/pgtest"
)

// counts are how many send at once.
func (b *bench) counts() []int {
	if b.senders > 0 {
		return []int{b.senders}
	}
	return []int{1, 64}
}

// A way to run the webhook gate: where webhooks are before they are answered with 200, and by which usher.
type way struct {
	name   string
	inbox  string // a setting; or inFile, onPostgres
	binary string // empty: the usher that is measured
}

const (
	inFile     = "file:"
	onPostgres = "postgres:"
)

var (
	passing  = way{name: "pass-through"}
	file     = way{name: "file", inbox: inFile}
	database = way{name: "PostgreSQL", inbox: onPostgres}
)

// gates are an usher for each of the ways, all in front of one receiver.
type gates struct {
	*bench
	receiver *receiver
	ways     []way
	ushers   map[way]*usher
	fleets   map[key]fleet
	samples  map[key][]sample
	disk     []float64 // webhooks per second that are appended to a file and synced, each by itself
	refused  int       // webhooks that were not answered with 200
	lost     int       // answered with 200, and not delivered
}

// key is one way to be measured.
type key struct {
	way     way
	senders int
}

// inbound measures the webhook gate in all its ways, in turns, and beside them what the
// disk gives to a program that syncs once for each webhook.
func inbound(ctx context.Context, b *bench) ([]*table, error) {
	rc, err := newReceiver()
	if err != nil {
		return nil, err
	}
	defer rc.down()
	g := &gates{
		bench:    b,
		receiver: rc,
		ways:     []way{passing, file, database},
		ushers:   make(map[way]*usher),
		fleets:   make(map[key]fleet),
		samples:  make(map[key][]sample),
	}
	if b.beside != "" {
		for _, before := range []way{file, database} {
			before.name, before.binary = before.name+", before", b.beside
			g.ways = append(g.ways, before)
		}
	}
	for _, way := range g.ways {
		inbox, stop, err := b.inboxFor(way)
		if err != nil {
			return nil, err
		}
		defer stop()
		one := *b
		one.usher = cmp.Or(way.binary, b.usher)
		u, err := one.start(ctx, inbox, "USHER_WEBHOOK_FORWARD_URL=http://"+rc.address+"/")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
		defer u.stop()
		g.ushers[way] = u
	}
	rounds := pick(b, 2, 5)
	for round := range rounds {
		b.say("webhooks, round %d of %d", round+1, rounds)
		if err := g.round(ctx, round); err != nil {
			return nil, err
		}
	}
	return []*table{g.aims(), g.table()}, nil
}

// inboxFor prepares an inbox, and returns the setting for it. stop ends the server that it took.
func (b *bench) inboxFor(w way) (inbox string, stop func(), err error) {
	switch w.inbox {
	case inFile:
		dir, err := os.MkdirTemp(b.dir, "inbox-")
		return "file:" + filepath.Join(dir, "inbox.db"), func() {}, err
	case onPostgres:
		s, err := pgtest.Run("fsync=on", "shared_buffers=128MB")
		if err != nil {
			return "", nil, err
		}
		return s.DSN(), s.Remove, nil
	}
	return w.inbox, func() {}, nil
}

// round takes one sample of each way. Nobody is always the first.
func (g *gates) round(ctx context.Context, round int) error {
	length := pick(g.bench, time.Second, 3*time.Second)
	for _, senders := range g.counts() {
		for turn := range g.ways {
			k := key{g.ways[(turn+round)%len(g.ways)], senders}
			s, err := g.sample(ctx, k, length)
			if err != nil {
				return fmt.Errorf("%s, %d senders: %w", k.way.name, senders, err)
			}
			g.samples[k] = append(g.samples[k], s)
		}
	}
	rate, err := appendAndSync(filepath.Join(g.dir, "plain"), length)
	g.disk = append(g.disk, rate)
	return err
}

// sample is one measurement of a gate.
type sample struct {
	load
	delivered float64 // deliveries per second meanwhile
	waiting   [2]int  // in the inbox in the middle of it, and at its end
	all       float64 // webhooks per second, counted until the last was delivered
	cpu       float64 // of usher, in seconds per webhook, counted the same way
}

// fleet connects the senders of one way. They have a thousand tenants, the same ones in each round.
func (g *gates) fleet(k key) (f fleet, err error) {
	if f = g.fleets[k]; f != nil {
		return f, f.connect()
	}
	f, err = newFleet(g.ushers[k.way].gate, fmt.Sprint("bench-", len(g.fleets)), k.senders, max(1, 1000/k.senders))
	for _, s := range f {
		s.copies = true
	}
	g.fleets[k] = f
	return f, err
}

// lostAfter is for how long nothing is delivered before what is missing counts as lost.
const lostAfter = 40 * time.Second // more than a lease, which another try may have to wait for

func (g *gates) sample(ctx context.Context, k key, length time.Duration) (s sample, err error) {
	u := g.ushers[k.way]
	f, err := g.fleet(k)
	if err != nil {
		return s, err
	}
	defer f.close()
	var watch sync.WaitGroup
	defer watch.Wait()
	began, cpu, before := time.Now(), cpuOf(u.pid()), g.receiver.delivered.Load()
	if u.inbox != "" {
		watch.Go(func() {
			for i := range s.waiting {
				time.Sleep(time.Until(began.Add(length * time.Duration(i+1) / 2)))
				s.waiting[i], _ = u.pending() // where that fails, so does the rest
			}
		})
	}
	if s.load, err = f.run(ctx, length); err != nil {
		return s, err
	}
	s.delivered = float64(g.receiver.delivered.Load()-before) / s.took.Seconds()
	watch.Wait()
	// Until all are delivered, or nothing has come for some seconds: then some are lost.
	expected := int64(s.acknowledged - s.copies)
	ended, last := time.Now(), int64(0)
	for last < expected && time.Since(ended) < lostAfter && ctx.Err() == nil {
		if n := g.receiver.delivered.Load() - before; n > last {
			ended, last = time.Now(), n
		}
		time.Sleep(time.Millisecond)
	}
	s.all = float64(s.acknowledged) / ended.Sub(began).Seconds()
	s.cpu = (cpuOf(u.pid()) - cpu) / float64(max(1, s.acknowledged))
	g.refused += s.refused
	if missing := int(expected - (g.receiver.delivered.Load() - before)); missing != 0 {
		g.say("%s, %d senders: %d webhooks are missing", k.way.name, k.senders, missing)
		g.lost += missing
	}
	if late := ended.Sub(began) - s.took; late > 5*time.Second {
		g.say("%s, %d senders: the last was delivered %v after it was sent",
			k.way.name, k.senders, late.Round(time.Second/10))
	}
	return s, nil
}

// recordSize is what the inbox writes of one webhook, about.
const recordSize = 3500

// appendAndSync is how many webhooks per second a program gets done that appends each to a
// file and syncs it.
func appendAndSync(path string, length time.Duration) (rate float64, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer os.Remove(path)
	defer f.Close()
	record := make([]byte, recordSize)
	count, began := 0, time.Now()
	for ; time.Since(began) < length; count++ {
		if _, err := f.Write(record); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return float64(count) / time.Since(began).Seconds(), nil
}

func acknowledged(s sample) float64 { return s.rate() }
func delivered(s sample) float64    { return s.delivered }
func whole(s sample) float64        { return s.all }
func micros(s sample) float64       { return s.cpu * 1e6 }
func midway(s sample) float64       { return float64(s.waiting[0]) }
func atTheEnd(s sample) float64     { return float64(s.waiting[1]) }

func latency(q float64) func(sample) float64 {
	return func(s sample) float64 { return float64(quantile(s.latencies, q)) }
}

// over is the median of what one way reaches of another in the same round: what else the
// machine does in a while hits both.
func (g *gates) over(way, other way, senders int, get func(sample) float64) string {
	var shares []float64
	for i, s := range g.samples[key{way, senders}] {
		shares = append(shares, get(s)/get(g.samples[key{other, senders}][i]))
	}
	return times(median(shares, self))
}

// table is what senders see, and what becomes of their webhooks meanwhile.
func (g *gates) table() *table {
	t := &table{
		title:  "Webhooks, by where they are kept",
		header: []string{"", "acknowledged/s", "over the file's", "delivered/s", "p50, ms", "p99, ms", "CPU, µs"},
	}
	for _, n := range g.counts() {
		for _, way := range g.ways {
			s := g.samples[key{way, n}]
			t.add(plural(n, "sender")+", "+way.name,
				number(median(s, acknowledged)),
				g.over(way, file, n, acknowledged),
				number(median(s, delivered)),
				millis(time.Duration(median(s, latency(0.5)))),
				millis(time.Duration(median(s, latency(0.99)))),
				tenths(median(s, micros)))
		}
	}
	t.note("Webhooks are snapshots of 3 KB, of 1,000 tenants in turn; one in ten is a copy. "+
		"Each sender sends the next one when the last is answered: in pass-through by the receiver (at "+
		"once), otherwise when it is synced or committed. Senders, receiver, usher and database share the "+
		"machine; CPU is usher's, for each webhook: with one sender each has a transaction and a sync of its "+
		"own, 64 senders share them. A program that only appends webhooks to a file, and syncs each, "+
		"does %s/s on this disk.",
		number(median(g.disk, self)))
	return t
}

// aims puts what was reached beside what was aimed at.
func (g *gates) aims() *table {
	t := &table{title: "Aims", header: []string{"", "aim", "reached"}, aside: true}
	t.add("file over pass-through, 64 senders, acknowledged", "≥ 0.70", g.over(file, passing, 64, acknowledged))
	t.add("… counted until the last is delivered", "≥ 0.70", g.over(file, passing, 64, whole))
	for i, before := range g.ways[3:] {
		mine := []way{file, database}[i]
		compared := mine.name + " over " + before.name + ", 64 senders, CPU for each webhook"
		t.add(compared, "≤ 1.15", g.over(mine, before, 64, micros))
		t.add("… acknowledged", "≥ 0.85", g.over(mine, before, 64, acknowledged))
		t.add("… counted until the last is delivered", "≥ 0.85", g.over(mine, before, 64, whole))
	}
	for _, way := range []way{file, database} {
		if s := g.samples[key{way, 1}]; len(s) > 0 {
			t.add("p99 of one sender, "+way.name, "≤ 10 ms", millis(time.Duration(median(s, latency(0.99))))+" ms")
		}
	}
	for _, way := range g.ways[1:] {
		s := g.samples[key{way, 64}]
		waiting := number(median(s, midway)) + " → " + number(median(s, atTheEnd))
		t.add("waiting midway and at the end, 64 senders, "+way.name, "flat", waiting)
	}
	t.add("refused / out of order / lost, in all", "0 / 0 / 0",
		fmt.Sprintf("%d / %d / %d", g.refused, g.receiver.disorder.Load()+g.receiver.strange.Load(), g.lost))
	return t
}
