package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"usher/internal/testkit/pgtest"
)

// A way to keep webhooks until they are delivered.
type way struct{ name, inbox string } // inbox is a setting; inFile and onPostgres stand for a new one

const (
	inFile     = "file:"
	onPostgres = "postgres:"
)

var (
	passThrough = way{"pass-through", ""}
	inboxes     = []way{{"file", inFile}, {"PostgreSQL", onPostgres}}
)

// newInbox prepares an inbox, and returns the setting for it. stop ends its server.
func (b *bench) newInbox(w way) (inbox string, stop func(), err error) {
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
	return "", func() {}, nil
}

// A gate is an usher that takes webhooks for a receiver of its own.
type gate struct {
	way
	*usher
	rc      *receiver
	fleets  map[int]fleet // by how many they are
	samples map[int][]sample
}

func (b *bench) newGate(ctx context.Context, w way) (g *gate, stop func(), err error) {
	rc, err := newReceiver()
	if err != nil {
		return nil, nil, err
	}
	inbox, drop, err := b.newInbox(w)
	if err != nil {
		return nil, nil, err
	}
	u, err := b.start(ctx, inbox, "USHER_WEBHOOK_FORWARD_URL=http://"+rc.address+"/")
	if err != nil {
		drop()
		return nil, nil, fmt.Errorf("%s: %w", w.name, err)
	}
	g = &gate{way: w, usher: u, rc: rc, fleets: make(map[int]fleet), samples: make(map[int][]sample)}
	return g, func() { u.stop(); drop(); rc.down() }, nil
}

// inbound measures the webhook gate in all its ways, in turns.
func inbound(ctx context.Context, b *bench) ([]*table, error) {
	var gates []*gate
	for _, w := range append([]way{passThrough}, inboxes...) {
		g, stop, err := b.newGate(ctx, w)
		if err != nil {
			return nil, err
		}
		defer stop()
		gates = append(gates, g)
	}
	counts, rounds := []int{1, 64}, pick(b, 2, 5)
	for round := range rounds {
		b.say("webhooks, round %d of %d", round+1, rounds)
		for _, senders := range counts {
			for turn := range gates { // none is always the first
				g := gates[(turn+round)%len(gates)]
				s, err := g.sample(ctx, senders, pick(b, time.Second, 3*time.Second))
				if err != nil {
					return nil, fmt.Errorf("%s, %d senders: %w", g.name, senders, err)
				}
				g.samples[senders] = append(g.samples[senders], s)
			}
		}
	}
	t := &table{
		title:  "Webhooks, by where they are kept",
		header: []string{"", "acknowledged/s", "delivered/s", "p50, ms", "p99, ms", "CPU, µs", "MB"},
		note: "Webhooks are snapshots of 3 KB, of 1,000 tenants in turn; one in ten is a copy. Each sender sends the next one " +
			"when the last is answered: in pass-through by the receiver (at once), otherwise when it is synced or " +
			"committed. Delivered/s counts until the last one is delivered. Senders, receiver, usher and database share " +
			"the machine. CPU is usher's, for each webhook; MB is its memory (RSS) afterwards.",
	}
	for _, n := range counts {
		for _, g := range gates {
			s := g.samples[n]
			t.add(fmt.Sprintf("%d × %s", n, g.name),
				number(median(s, func(s sample) float64 { return s.rate() })),
				number(median(s, func(s sample) float64 { return s.all })),
				tenths(median(s, func(s sample) float64 { return quantile(s.latencies, 0.5).Seconds() * 1e3 })),
				tenths(median(s, func(s sample) float64 { return quantile(s.latencies, 0.99).Seconds() * 1e3 })),
				tenths(median(s, func(s sample) float64 { return s.cpu * 1e6 })), megabytes(g.memory()))
		}
	}
	return []*table{t}, nil
}

// A sample is one measurement of a gate.
type sample struct {
	load
	all float64 // webhooks per second, counted until the last was delivered
	cpu float64 // of usher, in seconds per webhook, counted the same way
}

// sample has so many senders send for a while. They have a thousand tenants, the same ones each time.
func (g *gate) sample(ctx context.Context, senders int, length time.Duration) (s sample, err error) {
	f := g.fleets[senders]
	if f == nil {
		f = newFleet(g.gate, fmt.Sprint("bench-", senders), senders, max(1, 1000/senders))
		g.fleets[senders] = f
	}
	if err := f.connect(); err != nil {
		return s, err
	}
	defer f.close()
	began, cpu, before := time.Now(), g.cpu(), g.rc.delivered.Load()
	if s.load, err = f.run(ctx, length); err != nil {
		return s, err
	}
	took, err := g.rc.wait(ctx, before+int64(s.acknowledged-s.copies), began)
	s.all = float64(s.acknowledged) / took.Seconds()
	s.cpu = (g.cpu() - cpu) / float64(max(1, s.acknowledged))
	if err == nil && s.refused > 0 {
		err = fmt.Errorf("%d webhooks were not answered with 200", s.refused)
	}
	return s, err
}

// recovery measures how fast usher delivers what waited for a receiver that was down.
func recovery(ctx context.Context, b *bench) ([]*table, error) {
	each := pick(b, 40, 200) // of each of 64 senders
	t := &table{
		title:  "A receiver that was down is back",
		header: []string{"", "the first after, ms", "all after, s", "deliveries/s", "CPU, µs", "MB"},
		note: fmt.Sprintf("%d webhooks of 1,000 tenants wait while nobody listens at the receiver's address, and usher knows "+
			"that. Then it listens again, and takes each at once. CPU is usher's, for each; MB its memory (RSS) at its highest.",
			64*each),
	}
	for _, w := range inboxes {
		b.say("recovery, %s", w.name)
		var first, all, cpu []float64
		most := int64(0)
		for range pick(b, 1, 3) {
			err := func() error {
				g, stop, err := b.newGate(ctx, w)
				if err != nil {
					return err
				}
				defer stop()
				g.rc.down()
				f := newFleet(g.gate, "waits", 64, 16)
				if err := f.connect(); err != nil {
					return err
				}
				defer f.close()
				l, err := f.each(func(s *sender, l *load) (err error) {
					for range each {
						if err = s.send(l); err != nil {
							break
						}
					}
					return err
				})
				if err != nil || l.refused > 0 {
					return fmt.Errorf("%d webhooks were refused: %w", l.refused, err)
				}
				time.Sleep(6 * time.Second) // usher waits for the receiver
				used, began := g.cpu(), time.Now()
				if err := g.rc.up(); err != nil {
					return err
				}
				early, err := g.rc.wait(ctx, 1, began)
				if err != nil {
					return err
				}
				took, err := g.rc.wait(ctx, int64(l.acknowledged-l.copies), began)
				first, all = append(first, early.Seconds()*1e3), append(all, took.Seconds())
				cpu = append(cpu, (g.cpu()-used)/float64(l.acknowledged)*1e6)
				most = max(most, g.mostMemory())
				return err
			}()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
		same := func(f float64) float64 { return f }
		t.add(w.name, number(median(first, same)), tenths(median(all, same)),
			number(float64(64*each)/median(all, same)), tenths(median(cpu, same)), megabytes(most))
	}
	return []*table{t}, nil
}

// A load is what a fleet got done.
type load struct {
	acknowledged int
	copies       int // of these: copies, which are not delivered
	refused      int // answered otherwise than with 200
	took         time.Duration
	latencies    []time.Duration // sorted
}

func (l load) rate() float64 { return float64(l.acknowledged) / l.took.Seconds() }

// snapshotOf is a small webhook.
func snapshotOf(platform, tenant string, users int) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"id":%d,"code":%q,"name":"T",`+
		`"platform":{"id":2,"code":%q,"name":"P"}},"change":{"features":[{"code":"users","name":"Users","value":"","quantity":%d}],`+
		`"subscriptions":[]}}}`, crc32.ChecksumIEEE([]byte(tenant)), tenant, platform, users)
}
