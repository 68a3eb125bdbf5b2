package shared

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/webhookgate"
)

// Three replicas deliver more than twice as much as one where the receiver is what takes the
// time, and each tenant's webhooks in order. The time is the bubble's, not the machine's.
func TestDeliveriesScale(t *testing.T) {
	took := make(map[int]time.Duration)
	for _, replicas := range []int{1, 3} {
		bubble(t, func(t *testing.T, c *cluster) {
			c.parts = parts
			c.change = func(_ *Config, cfg *courier.Config) { cfg.Receivers[0].Concurrency = 16 }
			c.receiver.Slow(100 * time.Millisecond)
			var all []*replica
			for range replicas {
				r := c.start()
				defer r.stop()
				all = append(all, r)
			}
			until(t, "each has its share", func() bool {
				sum, least := 0, parts
				for _, r := range all {
					sum, least = sum+r.terms(), min(least, r.terms())
				}
				return sum == parts && least == parts/replicas
			})
			const tenants, each = 200, 3
			began := time.Now()
			var sending sync.WaitGroup
			for tenant := range tenants {
				sending.Go(func() {
					for n := range each {
						all[tenant%replicas].send(t, fmt.Sprint("t", tenant), fmt.Sprint(n))
					}
				})
			}
			sending.Wait()
			until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == tenants*each })
			took[replicas] = time.Since(began)
			next := make(map[string]int)
			for _, got := range c.receiver.Accepted() {
				tenant, n, _ := strings.Cut(got, ":")
				if n != fmt.Sprint(next[tenant]) {
					t.Fatalf("%s came when %d was next", got, next[tenant])
				}
				next[tenant]++
			}
		})
	}
	ratio := took[1].Seconds() / took[3].Seconds()
	t.Logf("one replica took %v, three %v: %.1f times as fast", took[1], took[3], ratio)
	if ratio < 2.2 {
		t.Errorf("three replicas are %.1f times as fast as one", ratio)
	}
}

// BenchmarkTakeover has b.N webhooks wait, each of its own tenant, and measures how long it takes
// until a replica that starts knows them all, and what memory they take there.
//
//	go test ./internal/inbox/shared -run xxx -bench Takeover -benchtime 1000000x
func BenchmarkTakeover(b *testing.B) {
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: b.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		b.Fatal(err)
	}
	go s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(10 * time.Second) {
		b.Fatal("the server does not start")
	}
	log := slog.New(slog.DiscardHandler)
	open := func(idle bool) (*Store, *courier.Courier, func()) {
		var down inboxtest.Receiver
		down.Set(inboxtest.Refusing)
		c := courier.New(courier.Config{Receivers: []courier.Receiver{{Name: "main", Try: down.Try, Concurrency: 1}}, Attempts: 20, MaxAge: time.Hour, Log: log})
		store, err := Open(Config{
			NATS:  &NATS{Servers: []string{nats.DefaultURL}, Stream: "USHER", Options: []nats.Option{nats.InProcessServer(s)}},
			Route: func(webhookgate.Lane) string { return "main" }, Idle: idle, DedupSize: 10_000, DedupWindow: time.Minute, MaxBytes: 16 << 30, Log: log,
		}, c)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { store.Run(ctx, ctx) })
		return store, c, func() { cancel(); running.Wait(); store.Close() }
	}
	filler, _, end := open(true)
	body := strings.Repeat(`{"feature":"users","quantity":25}`, 30)
	for n := range b.N {
		w := inboxtest.Webhook(fmt.Sprint("tenant-", n), body)
		m := nats.NewMsg(filler.subject("in", placeOf(w.Lane)))
		pack(w).put(m)
		h := newHead(webhookKind, w)
		h.put(m)
		for {
			if _, err = filler.js.PublishMsgAsync(m); err != jetstream.ErrTooManyStalledMsgs {
				break
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	<-filler.js.PublishAsyncComplete()
	end()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	b.ResetTimer()
	_, c, end := open(false)
	defer end()
	for c.Stats().Pending < b.N {
		time.Sleep(10 * time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric(float64(heap()-before)/float64(b.N), "bytes/webhook")
}
