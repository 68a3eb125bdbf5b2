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
var senderCounts = []int{1, 64, 256}

// The ways to run the webhook gate that are compared: where webhooks are before they are
// answered with 200.
const (
	passing = "pass-through"
	inFile  = "file"
	onOne   = "NATS, 1 server"
	onThree = "NATS, 3 servers"
)

// gates are an usher for each of the ways, all in front of one receiver.
type gates struct {
	*bench
	receiver *receiver
	ways     []string
	ushers   map[string]*usher
	samples  map[key][]sample
	disk     []float64 // webhooks per second that are appended to a file and synced, each by itself
	fleets   int       // so far: their tenants are named by it
	refused  int       // webhooks that were not answered with 200
	lost     int       // answered with 200, and not delivered
}

// key is one way to be measured.
type key struct {
	way     string
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
	g := &gates{bench: b, receiver: rc, ways: []string{passing, inFile, onOne, onThree}, ushers: make(map[string]*usher), samples: make(map[key][]sample)}
	for _, way := range g.ways {
		inbox, stop, err := b.inboxFor(way)
		if err != nil {
			return nil, err
		}
		defer stop()
		u, err := b.start(ctx, inbox, "USHER_WEBHOOK_FORWARD_URL=http://"+rc.address+"/")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way, err)
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

// inboxFor prepares an inbox, and returns the setting for it. stop ends the servers that it
// took.
func (b *bench) inboxFor(way string) (inbox string, stop func(), err error) {
	switch way {
	case passing:
		return "", func() {}, nil
	case inFile:
		dir, err := os.MkdirTemp(b.dir, "inbox-")
		return "file:" + filepath.Join(dir, "inbox.db"), func() {}, err
	case onOne:
		return b.startNATS(1)
	default:
		return b.startNATS(3)
	}
}

// round takes one sample of each way. Nobody is always the first.
func (g *gates) round(ctx context.Context, round int) error {
	length := pick(g.bench, time.Second, 3*time.Second)
	for _, senders := range senderCounts {
		for turn := range g.ways {
			way := g.ways[(turn+round)%len(g.ways)]
			s, err := g.sample(ctx, g.ushers[way], senders, length)
			if err != nil {
				return fmt.Errorf("%s, %d senders: %w", way, senders, err)
			}
			k := key{way, senders}
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

func (g *gates) sample(ctx context.Context, u *usher, senders int, length time.Duration) (s sample, err error) {
	g.fleets++
	f, err := newFleet(u.gate, fmt.Sprintf("bench-%d", g.fleets), senders, tenantsEach)
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
	ended := time.Now()
	if u.inbox != "" {
		if ended, err = u.drained(ctx); err != nil {
			return s, err
		}
	}
	s.all = float64(s.acknowledged) / ended.Sub(began).Seconds()
	s.cpu = (cpuOf(u.pid()) - cpu) / float64(max(1, s.acknowledged))
	g.refused += s.refused
	g.lost += s.acknowledged - int(g.receiver.delivered.Load()-before)
	return s, nil
}

// recordSize is what the inbox writes of one webhook, about.
const recordSize = 1700

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
func (g *gates) over(way, other string, senders int, get func(sample) float64) string {
	var shares []float64
	for i, s := range g.samples[key{way, senders}] {
		shares = append(shares, get(s)/get(g.samples[key{other, senders}][i]))
	}
	return times(median(shares, self))
}

// table is what senders see, and what becomes of their webhooks meanwhile.
func (g *gates) table() *table {
	t := &table{title: "Webhooks, by where they are kept", header: []string{"", "acknowledged/s", "over the file's", "delivered/s", "over the file's",
		"waiting midway", "at the end", "p50", "p99", "CPU per webhook"}}
	for _, n := range senderCounts {
		for _, way := range g.ways {
			s := g.samples[key{way, n}]
			waiting := []string{number(median(s, midway)), number(median(s, atTheEnd))}
			if way == passing {
				waiting = []string{"", ""}
			}
			t.add(plural(n, "sender")+", "+way, number(median(s, acknowledged)), g.over(way, inFile, n, acknowledged),
				number(median(s, delivered)), g.over(way, inFile, n, delivered), waiting[0], waiting[1],
				millis(time.Duration(median(s, latency(0.5)))), millis(time.Duration(median(s, latency(0.99)))), microseconds(median(s, micros)))
		}
	}
	t.note("Each sender sends its next webhook when the last one is answered; each webhook is another snapshot, of about 1.2 KB; the receiver answers at once. " +
		"Pass-through answers when the receiver has, the file when the webhook is synced, NATS when most of its servers have synced it (sync_interval: always). " +
		"All of it shares this machine: senders, receiver, usher and the servers.")
	t.note("Waiting is usher_inbox_pending under load. CPU is that of usher alone, until the last webhook was delivered. Ratios are the median of the rounds' own.")
	t.note("With many senders the file's deliveries fall behind: USHER_WEBHOOK_INBOX_CONCURRENCY (32) are under way at once, and each takes longer on cores that the senders keep busy. With 128 at once they keep up, and a tenth less is acknowledged.")
	t.note("A program that appends each webhook to a file and syncs it before the next gets %s/s done on this disk.", number(median(g.disk, self)))
	return t
}

// aims puts what was reached beside what was aimed at.
func (g *gates) aims() *table {
	t := &table{title: "Aims", header: []string{"", "aim", "reached"}}
	t.add("file over pass-through, 64 senders, acknowledged", "≥ 0.70", g.over(inFile, passing, 64, acknowledged))
	t.add("… counted until the last is delivered", "≥ 0.70", g.over(inFile, passing, 64, whole))
	for _, way := range g.ways[1:] {
		s := g.samples[key{way, 64}]
		t.add("waiting midway and at the end, 64 senders, "+way, "flat", number(median(s, midway))+" → "+number(median(s, atTheEnd)))
	}
	t.add("refused / out of order / lost, in all", "0 / 0 / 0",
		fmt.Sprintf("%d / %d / %d", g.refused, g.receiver.disorder.Load()+g.receiver.strange.Load(), g.lost))
	return t
}
