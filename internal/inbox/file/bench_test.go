package file

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/entitlements"
	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/webhookgate"
)

// BenchmarkSenders has 64 senders at once, on a real disk, while the courier delivers:
// what is acknowledged must not leave it far behind.
func BenchmarkSenders(b *testing.B) {
	cfg := config(b.TempDir(), new(inboxtest.Receiver))
	var delivered atomic.Int64
	cfg.courier.Receivers[0].Try = func(context.Context, *webhookgate.Webhook) webhookgate.Attempt {
		time.Sleep(time.Millisecond)
		delivered.Add(1)
		return webhookgate.Attempt{Status: 200}
	}
	s, err := Open(cfg.Config, courier.New(cfg.courier))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running, senders sync.WaitGroup
	running.Go(func() { s.Run(ctx, ctx) })
	body := strings.Repeat("x", 2000)
	var next atomic.Int64
	b.ResetTimer()
	for range 64 {
		senders.Go(func() {
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				if _, err := s.Append(inboxtest.Webhook(fmt.Sprint("t", n%1000), body+fmt.Sprint(n)), false); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	senders.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acked/s")
	b.ReportMetric(float64(delivered.Load())/b.Elapsed().Seconds(), "delivered/s")
	b.ReportMetric(float64(s.syncs.Load())/float64(b.N), "transactions/webhook")
	cancel()
	running.Wait()
	s.Close()
}

// BenchmarkOpen has b.N webhooks wait, each of its own tenant, while their receiver is down. It
// measures how long it takes to open the file, and what memory they take then.
//
//	go test ./internal/inbox/file -run xxx -bench Open -benchtime 1000000x -timeout 30m
func BenchmarkOpen(b *testing.B) {
	down := new(inboxtest.Receiver)
	down.Set(inboxtest.Refusing)
	cfg := config(b.TempDir(), down)
	// As usher does: entitlements have an index of all tenants.
	index := entitlements.NewIndex(1 << 20)
	cfg.OnSnapshot = func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
		index.Know(lane.Platform, lane.Tenant, id)
	}
	s, err := Open(cfg.Config, courier.New(cfg.courier))
	if err != nil {
		b.Fatal(err)
	}
	s.db.NoSync = true
	body := strings.Repeat(`{"feature":"users","quantity":25}`, 30)
	var senders sync.WaitGroup
	const many = 4096 // that share a transaction
	for sender := range many {
		senders.Go(func() {
			for n := sender; n < b.N; n += many {
				if _, err := s.Append(inboxtest.Webhook(fmt.Sprint("tenant-", n), body), false); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	senders.Wait()
	s.Close()
	s, index = nil, entitlements.NewIndex(1<<20)
	before := inboxtest.Heap()
	b.ResetTimer()
	c := courier.New(cfg.courier)
	if s, err = Open(cfg.Config, c); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	if n := c.Stats().Pending; n != b.N {
		b.Fatalf("%d wait", n)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(b.Elapsed().Seconds(), "s-to-open")
	b.ReportMetric(float64(inboxtest.Heap()-before)/float64(b.N), "B/webhook")
	runtime.KeepAlive(index)
	s.Close()
}
