package courier

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// instant is a Term that notes at once.
type instant struct{ desk }

func (*instant) Note(_ record.Record, _ *webhookgate.Webhook, noted func()) { noted() }

// BenchmarkSupersede has one webhook come to a lane in which many wait, behind one that is being delivered, where
// only the latest is wanted. Or it was accepted, where many are parked. However many there are, each takes the
// same time.
func BenchmarkSupersede(b *testing.B) {
	for _, state := range []record.State{record.Waiting, record.Parked} {
		for _, many := range []int{10_000, 100_000} {
			b.Run(fmt.Sprint(state, "-", many), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					begun, goOn := make(chan struct{}), make(chan struct{})
					cfg := config(new(inboxtest.Receiver))
					cfg.KeepLatest = true
					cfg.Receivers[0].Try = func(context.Context, *webhookgate.Webhook) webhookgate.Attempt {
						begun <- struct{}{}
						<-goOn
						return webhookgate.Attempt{Status: 200}
					}
					c, t := New(cfg), new(instant)
					t.contents = make(map[uint64]*webhookgate.Webhook)
					newest := inboxtest.Webhook("t", "")
					t.contents[uint64(many+1)] = newest
					var all []*record.Record
					for n := range uint64(many) {
						w := inboxtest.Webhook("t", "")
						all = append(all, &record.Record{ID: n + 1, Webhook: w, Status: record.Status{State: state}})
						if n == 0 { // no snapshot: that would be superseded instead of being tried
							w.Snapshot, t.contents[1] = false, w
						}
					}
					c.Begin(t, all)
					ctx, cancel := context.WithCancel(b.Context())
					ended := make(chan struct{})
					go func() { defer close(ended); c.Run(ctx, ctx) }()
					take := func() {
						c.Take(t, &record.Record{ID: uint64(many + 1), Webhook: newest, Status: record.Status{State: record.Waiting}}, newest, false)
					}
					if state == record.Waiting {
						<-begun
						b.StartTimer()
						take()
						b.StopTimer()
						goOn <- struct{}{}
						<-begun
						goOn <- struct{}{}
					} else {
						take()
						<-begun
						b.StartTimer()
						goOn <- struct{}{}
						for c.Stats().Parked > 1 {
							runtime.Gosched()
						}
						b.StopTimer()
					}
					cancel()
					<-ended
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/webhook")
			})
		}
	}
}
