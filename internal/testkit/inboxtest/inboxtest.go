// Package inboxtest is for tests only: a real inbox in a file, in front of a receiver that answers as a test says.
package inboxtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/inbox/sqlite"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// Box is an inbox. A webhook that was tried in vain is tried again after four minutes, so that tests see it wait.
type Box struct {
	*inbox.Inbox
	Receivers *receiver.Set

	t      testing.TB
	engine broken
	taken  int
	mu     sync.Mutex // guards what follows
	ahead  time.Duration
	status int
	words  string
}

// Open opens an inbox. Each of the receivers takes the platform of its name; main takes all that no other
// takes. Without main the webhooks of other platforms are stored. None named: main.
func Open(t testing.TB, names ...string) *Box {
	t.Helper()
	b := &Box{t: t, status: http.StatusOK}
	if len(names) == 0 {
		names = []string{receiver.Main}
	}
	var all []*receiver.Receiver
	for _, name := range names {
		r := &receiver.Receiver{
			Name:        name,
			Platforms:   []string{name},
			URL:         &url.URL{Scheme: "http", Host: "receiver"},
			Timeout:     5 * time.Second,
			Concurrency: 4,
			Transport:   b,
		}
		if name == receiver.Main {
			r.Platforms = nil
		}
		all = append(all, r)
	}
	b.Receivers = receiver.NewSet(all...)
	log := slog.New(slog.DiscardHandler)
	file, err := sqlite.Open(filepath.Join(t.TempDir(), "inbox.db"), log)
	if err != nil {
		t.Fatal(err)
	}
	b.engine.Engine = file
	b.Inbox = inbox.New(&b.engine, inbox.Config{
		Rules: lane.Rules{
			StoreUnclaimed: true,
			Receivers:      b.Receivers,
			ParkAfter:      time.Hour,
			MaxBytes:       1 << 30,
			DedupWindow:    time.Minute,
			Log:            log,
			Jitter:         func(time.Duration) time.Duration { return 4 * time.Minute },
		},
		ClockOffset: func() time.Duration { b.mu.Lock(); defer b.mu.Unlock(); return b.ahead },
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx, ctx) }()
	t.Cleanup(func() { stop(); <-ended; _ = b.Close() })
	for !b.Ready() {
		time.Sleep(time.Millisecond)
	}
	return b
}

// broken is an engine that can be broken, or in doubt.
type broken struct {
	engine.Engine
	err   atomic.Pointer[error]
	doubt atomic.Pointer[string]
	hangs atomic.Pointer[context.Context]
}

func (e *broken) Write(fn func(engine.Tx) error) error {
	if until := e.hangs.Load(); until != nil {
		<-(*until).Done()
		return engine.ErrDoubt
	}
	if err := e.err.Load(); err != nil && *err != nil {
		return *err
	}
	doubt := false
	err := e.Engine.Write(func(tx engine.Tx) error {
		return fn(&listener{tx, func(statement string) {
			if name := e.doubt.Load(); name != nil && *name == statement {
				doubt = true
			}
		}})
	})
	if doubt && err == nil {
		e.doubt.Store(nil)
		return inbox.ErrDoubt
	}
	return err
}

// listener hears which statements are queued.
type listener struct {
	engine.Tx
	hear func(statement string)
}

func (l *listener) Queue(statement string, each func(engine.Row) error, args ...any) {
	l.hear(statement)
	l.Tx.Queue(statement, each, args...)
}

// Doubt has the next transaction with this statement end in doubt, although it is committed.
func (b *Box) Doubt(statement string) { b.engine.doubt.Store(&statement) }

func (e *broken) Read(ctx context.Context, fn func(engine.Tx) error) error {
	if until := e.hangs.Load(); until != nil {
		select {
		case <-(*until).Done():
		case <-ctx.Done():
		}
		return &engine.AwayError{Err: errors.New("no answer")}
	}
	if err := e.err.Load(); err != nil && *err != nil {
		return *err
	}
	return e.Engine.Read(ctx, fn)
}

// Break makes the inbox fail from now on.
func (b *Box) Break(why string) {
	b.Fail(&engine.BrokenError{Err: errors.New(why)})
	_ = b.Pause(inbox.Pause{}) // so that it notices
}

// Hang lets the database answer nothing until ctx ends.
func (b *Box) Hang(ctx context.Context) { b.engine.hangs.Store(&ctx) }

// Fail makes each transaction fail from now on; nil: none.
func (b *Box) Fail(err error) { b.engine.err.Store(&err) }

// RoundTrip is the receivers' answer.
func (b *Box) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status == 0 {
		return nil, fmt.Errorf("dial tcp: %s", b.words)
	}
	return &http.Response{
		StatusCode: b.status,
		Header:     make(http.Header),
		Body:       io.NopCloser(strings.NewReader(b.words)),
		Request:    r,
	}, nil
}

// Answer is what the receivers say from now on; status 0: they can't be reached.
func (b *Box) Answer(status int, words string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.words = status, words
}

// Pass lets the inbox's clock run ahead.
func (b *Box) Pass(d time.Duration) { b.mu.Lock(); defer b.mu.Unlock(); b.ahead += d }

// Snapshot is the body of a webhook that lists features, each as "code" or "code=quantity".
func Snapshot(platform, tenant string, features ...string) string {
	var list []string
	for _, f := range features {
		code, quantity, limited := strings.Cut(f, "=")
		if !limited {
			quantity = "null"
		}
		list = append(list, fmt.Sprintf(`{"code":%q,"quantity":%s}`, code, quantity))
	}
	of := fmt.Sprintf(`{"code":%q,"platform":{"code":%q}}`, tenant, platform)
	change := `{"features":[` + strings.Join(list, ",") + `]}`
	return `{"type":"TenantProvisioningChange","payload":{"tenant":` + of + `,"change":` + change + `}}`
}

// What people do, if no test looks at who they are.
func (b *Box) Redeliver(id int64, force bool) error       { return b.Inbox.Redeliver(id, "", force, nil) }
func (b *Box) Discard(id int64) error                     { return b.Inbox.Discard(id, nil) }
func (b *Box) Accept(id int64, force bool) (int64, error) { return b.Inbox.Accept(id, force, nil) }
func (b *Box) Erase(platform, tenant string) (int, error) {
	return b.Inbox.Erase(platform, tenant, nil)
}
func (b *Box) Pause(p inbox.Pause) error          { _, err := b.Inbox.Pause(p, 0, nil); return err }
func (b *Box) Resume(p inbox.Pause) (bool, error) { return b.Inbox.Resume(p, nil) }

// Take takes in a snapshot of a tenant, waits until it was tried, and returns its number.
func (b *Box) Take(platform, tenant, body string) int64 {
	b.t.Helper()
	return b.Tried(b.Queue(&webhookgate.Webhook{
		Type:     content.TenantProvisioningChange,
		Snapshot: true,
		Lane:     webhookgate.LaneName{Platform: platform, Tenant: tenant},
		Body:     []byte(body),
	}))
}

// Queue takes in any webhook, and returns its number.
func (b *Box) Queue(w *webhookgate.Webhook) int64 {
	b.t.Helper()
	b.taken++
	w.ID = cmp.Or(w.ID, fmt.Sprintf("%08x-0000-7000-8000-000000000000", b.taken))
	if w.Header == nil {
		w.Header = http.Header{"Content-Type": {"application/json"}}
	}
	w.Digest, w.Receiver = sha256.Sum256(w.Body), b.Receivers.For(w.Lane.Platform)
	if of, err := b.Store(context.Background(), w); err != nil || of != "" {
		b.t.Fatalf("not taken in: a copy of %q, %v", of, err)
	}
	return b.list(inbox.Filter{Limit: 1})[0].ID
}

// Tried waits until a webhook no longer waits, or was tried since it came or was sent again.
func (b *Box) Tried(id int64) int64 {
	b.t.Helper()
	for e := b.Entry(id); e.State == state.Waiting && e.Tries == 0; e = b.Entry(id) {
		time.Sleep(time.Millisecond)
	}
	return id
}

func (b *Box) list(f inbox.Filter) []*lane.Webhook {
	all, err := b.List(context.Background(), f) // no Helper: a fuzz target may not call it
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// Entry is a webhook as it stands now.
func (b *Box) Entry(id int64) *lane.Webhook {
	b.t.Helper()
	item, err := b.Show(context.Background(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return item
}

// Stands says how all stands: each webhook with its state, whether it was sent again, and what is paused.
func (b *Box) Stands() map[string]string {
	all := make(map[string]string)
	for _, e := range b.list(inbox.Filter{}) {
		all[fmt.Sprint(e.ID)] = string(e.State)
		if !e.Redelivered.IsZero() {
			all[fmt.Sprint(e.ID)] += fmt.Sprintf(" again at %d", e.Redelivered.UnixMicro())
		}
	}
	for _, p := range b.Stats().Paused {
		all[p.String()] = "paused"
	}
	return all
}

// Acted is what has changed in the inbox between two calls of Stands.
func Acted(before, after map[string]string) string {
	var all []string
	for key, state := range before {
		if _, there := after[key]; !there {
			all = append(all, key+" gone")
		} else if after[key] != state {
			state, _, _ := strings.Cut(after[key], " again")
			all = append(all, key+" "+state)
		}
	}
	for key, state := range after {
		if _, there := before[key]; !there {
			all = append(all, key+" "+state)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}
