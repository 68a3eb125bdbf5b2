//go:build unix

package inbox

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/internal/testkit/pgtest"
)

type sink struct{ got atomic.Int64 }

func (s *sink) RoundTrip(r *http.Request) (*http.Response, error) {
	io.Copy(io.Discard, r.Body)
	s.got.Add(1)
	return &http.Response{StatusCode: 204, Header: make(http.Header), Body: http.NoBody}, nil
}

// BenchmarkInbox measures the inbox itself: a webhook is taken in and delivered, from 64 senders, for 1,000 tenants,
// with 3 KB.
func BenchmarkInbox(b *testing.B) {
	for name, open := range map[string]func() engine.Engine{
		"file":     inFile(b, filepath.Join(b.TempDir(), "inbox.db")),
		"database": func() engine.Engine { return inDatabase(b, pgtest.Schema(b))() },
	} {
		b.Run(name, func(b *testing.B) {
			to := new(sink)
			rc := &receiver.Receiver{Name: receiver.Main, URL: &url.URL{Scheme: "http", Host: "to"}, Timeout: time.Second, Concurrency: 32, Transport: to}
			set := receiver.NewSet(rc)
			in := New(open(), Config{Rules: lane.Rules{Receivers: set, MaxTries: 20, MaxAge: time.Hour, DedupWindow: time.Minute, Log: slog.New(slog.DiscardHandler)}, MaxBytes: 1 << 30})
			ctx, end := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { in.Run(ctx, context.Background()) })
			defer func() { end(); running.Wait(); in.Close() }()
			padding, state := strings.Repeat("x", 3000), snapshot.Snapshot{Name: "Some tenant", Known: true, Features: []snapshot.Feature{{Code: "users", Limit: 25}}}
			var next atomic.Int64
			began := cpuTime()
			b.ResetTimer()
			var senders sync.WaitGroup
			for range 64 {
				senders.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						w := aHook(set, fmt.Sprintf("crm/t%d", n%1000), fmt.Sprint(n, began, padding))
						w.State = state.Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
						if _, err := in.Store(w); err != nil {
							b.Error(err)
						}
					}
				})
			}
			senders.Wait()
			for to.got.Load() < int64(b.N) {
				time.Sleep(time.Millisecond)
			}
			b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// BenchmarkDuplicates measures what a copy costs, from 64 senders, for 1,000 tenants.
func BenchmarkDuplicates(b *testing.B) {
	for name, open := range map[string]func() engine.Engine{
		"file":     inFile(b, filepath.Join(b.TempDir(), "inbox.db")),
		"database": func() engine.Engine { return inDatabase(b, pgtest.Schema(b))() },
	} {
		b.Run(name, func(b *testing.B) {
			in := New(open(), Config{Rules: lane.Rules{StoreUnclaimed: true, MaxTries: 20, MaxAge: time.Hour, DedupWindow: time.Hour, Log: slog.New(slog.DiscardHandler)}, MaxBytes: 1 << 30})
			defer in.Close()
			padding, set := strings.Repeat("x", 3000), receiver.NewSet()
			state := snapshot.Snapshot{Name: "Some tenant", Known: true, Features: []snapshot.Feature{{Code: "users", Limit: 25}}}
			send := func(count int64) {
				var next atomic.Int64
				var senders sync.WaitGroup
				for range 64 {
					senders.Go(func() {
						for n := next.Add(1); n <= count; n = next.Add(1) {
							w := aHook(set, fmt.Sprintf("crm/t%d", n%1000), padding)
							w.State = state.Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
							if _, err := in.Store(w); err != nil {
								b.Error(err)
							}
						}
					})
				}
				senders.Wait()
			}
			send(1000)
			began := cpuTime()
			b.ResetTimer()
			send(int64(b.N))
			b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}
