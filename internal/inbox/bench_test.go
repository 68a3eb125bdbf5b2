//go:build unix

package inbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/internal/testkit/pgtest"
)

// benchEngines are what benchmarks run on.
var benchEngines = map[string]func(b *testing.B) engine.Engine{
	"file":     func(b *testing.B) engine.Engine { return inFile(b, filepath.Join(b.TempDir(), "inbox.db"))() },
	"database": func(b *testing.B) engine.Engine { return inDatabase(b, pgtest.Schema(b))() },
}

// benchStore stores the nth of many webhooks, for 1,000 tenants, with 3 KB and these words.
func benchStore(b *testing.B, in *Inbox, set *receiver.Set, n int, words string) {
	w := aHook(set, fmt.Sprintf("crm/t%d", n%1000), words+strings.Repeat("x", 3000))
	features := []snapshot.Feature{{Code: "users", Limit: 25}}
	state := snapshot.Snapshot{Name: "Some tenant", Known: true, Features: features}
	w.State = state.Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
	if _, err := in.Store(context.Background(), w); err != nil {
		b.Error(err)
	}
}

// BenchmarkInbox measures the inbox itself: a webhook is taken in and delivered, from 64 senders.
func BenchmarkInbox(b *testing.B) {
	for name, open := range benchEngines {
		b.Run(name, func(b *testing.B) {
			var got atomic.Int64
			rc := newTaker(receiver.Main, 32).Receiver
			rc.Transport = transport(func(r *http.Request) (*http.Response, error) {
				io.Copy(io.Discard, r.Body)
				got.Add(1)
				return &http.Response{StatusCode: 204, Header: make(http.Header), Body: http.NoBody}, nil
			})
			cfg := storing
			cfg.Receivers, cfg.DedupWindow = receiver.NewSet(rc), time.Minute
			in := New(open(b), cfg)
			ctx, end := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { in.Run(ctx, context.Background()) })
			defer func() { end(); running.Wait(); in.Close() }()
			began := cpuTime()
			b.ResetTimer()
			crowd(64, b.N, func(n int) { benchStore(b, in, cfg.Receivers, n, fmt.Sprint(n, began)) })
			for got.Load() < int64(b.N) {
				time.Sleep(time.Millisecond)
			}
			b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// BenchmarkDuplicates measures what a copy costs, from 64 senders.
func BenchmarkDuplicates(b *testing.B) {
	for name, open := range benchEngines {
		b.Run(name, func(b *testing.B) {
			cfg := storing
			cfg.Receivers, cfg.DedupWindow = nil, time.Hour
			in := New(open(b), cfg)
			defer in.Close()
			send := func(n int) { benchStore(b, in, receiver.NewSet(), n, "") }
			crowd(64, 1000, send)
			began := cpuTime()
			b.ResetTimer()
			crowd(64, b.N, send)
			b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}
