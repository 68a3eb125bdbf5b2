package file

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// setup is what a test's inbox is made of.
type setup struct {
	Config
	courier courier.Config
}

// config is that of a test's inbox in dir.
func config(dir string, r *inboxtest.Receiver) setup {
	log := slog.New(slog.DiscardHandler)
	return setup{
		Config: Config{Path: filepath.Join(dir, "inbox.db"), DedupWindow: 10 * time.Minute, Log: log},
		courier: courier.Config{
			Receivers: []courier.Receiver{{Name: "main", Try: r.Try, Concurrency: 32}},
			Attempts:  20, MaxAge: 72 * time.Hour, Log: log,
		},
	}
}

// logTo has both write to a log.
func (s *setup) logTo(log *slog.Logger) { s.Log, s.courier.Log = log, log }

// running is an inbox that delivers.
type running struct {
	*Store
	t    *testing.T
	stop func()                      // as an orderly end
	told map[webhookgate.Lane]uint64 // by OnSnapshot
}

// open opens an inbox that delivers, and openStore one that does not.
func open(t *testing.T, cfg setup) *running {
	t.Helper()
	s, err := Open(cfg.Config, courier.New(cfg.courier))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx, context.Background()) })
	r := &running{Store: s, t: t}
	r.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func openStore(t testing.TB, cfg setup) *Store {
	t.Helper()
	s, err := Open(cfg.Config, courier.New(cfg.courier))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-s.closed:
		default:
			s.Close()
		}
	})
	return s
}

// keep takes a webhook in and says whether it was a duplicate.
func (r *running) keep(tenant, body string) bool {
	r.t.Helper()
	return r.keepWebhook(inboxtest.Webhook(tenant, body))
}

func (r *running) keepWebhook(w *webhookgate.Webhook) bool {
	r.t.Helper()
	dup, err := r.Append(w, false)
	if err != nil {
		r.t.Fatal(err)
	}
	return dup != ""
}

// want compares how everything stands: as it is shown, and as the courier counts it.
func (r *running) want(states ...record.State) {
	r.t.Helper()
	synctest.Wait()
	entries, err := r.List(record.Filter{})
	if err != nil {
		r.t.Fatal(err)
	}
	got := make([]record.State, len(entries))
	pending, parked := 0, 0
	for i, e := range entries {
		got[len(entries)-1-i] = e.State
		switch e.State {
		case record.Waiting:
			pending++
		case record.Parked:
			parked++
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(states) {
		r.t.Errorf("states %v, want %v", got, states)
	}
	if s := r.courier.Stats(); s.Pending != pending || s.Parked != parked {
		r.t.Errorf("shown are %d waiting and %d parked, counted %d and %d", pending, parked, s.Pending, s.Parked)
	}
}

// slowDisk has transactions take so much longer from now on. It is the writer that looks at
// update, so it is the writer that changes it.
func (s *Store) slowDisk(delay time.Duration) {
	s.do(&op{act: func(*bbolt.Tx, *op) error {
		s.update = func(f func(*bbolt.Tx) error) error {
			time.Sleep(delay)
			return s.db.Update(f)
		}
		return nil
	}})
}
