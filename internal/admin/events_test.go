package admin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox"
)

// follower reads a stream of events.
type follower struct {
	mu     sync.Mutex
	header http.Header
	status int
	got    strings.Builder
	ended  chan struct{}
	leave  context.CancelFunc
}

func (f *follower) Header() http.Header { return f.header }
func (f *follower) WriteHeader(s int)   { f.status = s }
func (f *follower) Flush()              {}
func (f *follower) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got.Write(b)
}

// told returns how many events came since the last call.
func (f *follower) told() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := strings.Count(f.got.String(), "event: change\n")
	f.got.Reset()
	return n
}

func follow(h http.Handler) *follower {
	ctx, leave := context.WithCancel(context.Background())
	f := &follower{header: make(http.Header), ended: make(chan struct{}), leave: leave}
	r := httptest.NewRequest("GET", "/api/events", nil).WithContext(ctx)
	r.Host = "localhost"
	go func() {
		defer close(f.ended)
		h.ServeHTTP(f, r)
	}()
	return f
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Uint64
		cfg := port(nil)
		cfg.Platforms = func(string) ([]string, error) { return []string{"eu"}, nil }
		cfg.Forget = func(string, string, *inbox.Action) (int, error) { return 1, nil }
		cfg.Changes = changes.Load
		h := New(cfg)
		f := follow(h)
		synctest.Wait()
		if f.status != 200 || f.header.Get("Content-Type") != "text/event-stream" || f.told() != 1 {
			t.Fatalf("%d %v", f.status, f.header)
		}
		step := func(d time.Duration) int {
			time.Sleep(d)
			synctest.Wait()
			return f.told()
		}
		if n := step(5 * time.Second); n != 0 {
			t.Errorf("told %d times of nothing", n)
		}
		changes.Add(100)
		// One event for the change, and one a moment later.
		if a, b, c := step(time.Second), step(time.Second), step(time.Second); a != 1 || b != 1 || c != 0 {
			t.Errorf("told of a change: %d, %d, %d", a, b, c)
		}
		if n := step(30 * time.Second); n != 3 {
			t.Errorf("told %d times in 30 s that times go on", n)
		}
		ask(h, "POST", "/api/forget", `{"tenant":"acme"}`)
		if n := step(time.Second); n != 1 {
			t.Errorf("told %d times of what was done by hand", n)
		}
		f.leave()
		<-f.ended
	})
}

// The number of open streams is limited, a closed stream frees its place, and Close ends all streams.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(port(nil))
		var all []*follower
		for range maxStreams {
			all = append(all, follow(h))
		}
		synctest.Wait()
		refused := follow(h)
		<-refused.ended
		if refused.status != http.StatusServiceUnavailable || refused.header.Get("Retry-After") == "" {
			t.Errorf("one too many: %d", refused.status)
		}
		all[0].leave()
		<-all[0].ended
		all = append(all, follow(h))
		synctest.Wait()
		if status := all[maxStreams].status; status != 200 {
			t.Errorf("a free place: %d", status)
		}
		h.Close()
		h.Close() // does no harm
		for _, f := range all {
			<-f.ended
			f.leave()
		}
	})
}
