package file

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	b.ReportMetric(float64(s.syncs.Load()), "syncs")
	cancel()
	running.Wait()
	s.Close()
}
