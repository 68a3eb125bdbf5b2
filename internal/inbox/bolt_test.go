package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/webhookgate"
)

// errorLog counts what is reported.
type errorLog struct {
	slog.Handler
	mu    *sync.Mutex
	lines *[]string
}

func newErrorLog() errorLog { return errorLog{slog.DiscardHandler, new(sync.Mutex), new([]string)} }

func (l errorLog) Enabled(context.Context, slog.Level) bool { return true }
func (l errorLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Level >= slog.LevelError {
		*l.lines = append(*l.lines, r.Message)
	}
	return nil
}

// flip turns a bit of what is found in a closed file, wherever it is: bbolt leaves
// copies on free pages.
func flip(t *testing.T, path string, find []byte, at int, bit byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := 0; ; n++ {
		j := bytes.Index(b[i:], find)
		if j < 0 {
			break
		}
		b[i+j+at] ^= bit
		i += j + len(find)
	}
	if n == 0 {
		t.Fatalf("%q is not in the file", find)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// One record of five is damaged while usher is off: it is reported and parked, the
// others are delivered, and a copy of it that comes then is not taken for something
// that will be delivered.
func TestDamagedRecord(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"body": func(t *testing.T, path string) { flip(t, path, []byte("body of three"), 3, 1) },
		"envelope": func(t *testing.T, path string) {
			flip(t, path, []byte("type of three"), 3, 1)
		},
		"status": func(t *testing.T, path string) { flip(t, path, []byte("answer to three"), 3, 1) },
		"state": func(t *testing.T, path string) {
			// One bit makes an s, as of superseded, of the w, as of waiting.
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for end := 0; ; {
				i := bytes.Index(b[end:], []byte("answer to three"))
				if i < 0 {
					break
				}
				end += i + 1
				begin := bytes.LastIndex(b[:end], []byte(`{"state":"waiting"`))
				b[begin-1] = 's' // it may be one already: a status has several answers
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				rc := &receiver{answer: func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
					return webhookgate.Attempt{Err: errors.New("answer to " + w.Lane.Tenant)}
				}}
				i := open(t, config(dir, rc))
				tenants := []string{"one", "two", "three", "four", "five"}
				for _, tenant := range tenants {
					w := webhook(tenant, "body of "+tenant)
					w.Type = "type of " + tenant
					if _, err := i.Keep(w); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				i.stop()

				damage(t, filepath.Join(dir, "inbox.db"))
				log := newErrorLog()
				rc = new(receiver)
				cfg := config(dir, rc)
				cfg.Log = slog.New(log)
				i = open(t, cfg)
				i.want(Delivered, Delivered, Parked, Delivered, Delivered)
				if got := rc.accepted(); len(got) != 4 || slices.Contains(got, "three:body of three") {
					t.Errorf("the receiver got %v", got)
				}
				if len(*log.lines) != 1 || !strings.Contains((*log.lines)[0], "damaged") {
					t.Errorf("reported: %q", *log.lines)
				}
				if s := i.Stats(); s.Parked != 1 || s.Pending != 0 {
					t.Errorf("%+v", s)
				}
				if i.keep("three", "body of three") {
					t.Error("a copy was dropped, though what it copies will not be delivered")
				}
				time.Sleep(time.Second)
				if got := rc.accepted(); len(got) != 5 {
					t.Errorf("the receiver got %v", got)
				}
			})
		})
	}
}

func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, err := Open(config(t.TempDir(), new(receiver)))
		if err != nil {
			t.Fatal(err)
		}
		defer i.Close()
		s := i.store.(*boltStore)
		const disk = 5 * time.Millisecond
		update := s.update
		s.update = func(f func(*bbolt.Tx) error) error { time.Sleep(disk); return update(f) }

		began := time.Now()
		if _, err := i.Keep(webhook("alone", "A")); err != nil || time.Since(began) != disk {
			t.Errorf("a lone webhook took %v, %v", time.Since(began), err)
		}
		before := s.syncs.Load()
		var senders sync.WaitGroup
		for n := range 64 {
			senders.Go(func() {
				time.Sleep(time.Duration(n) * disk / 64)
				if _, err := i.Keep(webhook(fmt.Sprint("t", n), "A")); err != nil {
					t.Error(err)
				}
			})
		}
		senders.Wait()
		if n := s.syncs.Load() - before; n > 4 {
			t.Errorf("64 webhooks within one sync's time took %d transactions", n)
		}
		before = s.syncs.Load()
		if dup, err := i.Keep(webhook("t1", "A")); dup == "" || err != nil || s.syncs.Load() != before {
			t.Errorf("a duplicate %q took %d transactions, %v", dup, s.syncs.Load()-before, err)
		}
	})
}

// The disk is full: what was taken in before is delivered and there after a restart,
// what was refused is not, and nobody is told 200 any more.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := &receiver{delay: time.Second}
		i := open(t, config(dir, rc))
		i.keep("t", "A")
		i.keep("t", "B")
		s := i.Inbox.store.(*boltStore)
		update := s.update
		s.update = func(f func(*bbolt.Tx) error) error {
			return update(func(tx *bbolt.Tx) error {
				if err := f(tx); err != nil {
					return err
				}
				return syscall.ENOSPC
			})
		}
		var senders sync.WaitGroup
		for n := range 10 {
			senders.Go(func() {
				if dup, err := i.Keep(webhook(fmt.Sprint("t", n%5), "C")); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("%q, %v", dup, err)
				}
			})
		}
		senders.Wait()
		s.update = update // room again; that tells nothing of the file
		if _, err := i.Keep(webhook("t", "B")); err == nil || i.Err() == nil {
			t.Error("a copy was acknowledged after the fault")
		}
		if err := i.Redeliver(1, true); err == nil {
			t.Error("a redelivery was acknowledged after the fault")
		}
		if _, err := i.Forget("t"); err == nil {
			t.Error("forgotten after the fault")
		}
		time.Sleep(time.Minute)
		wantGot(t, rc, "t:A", "t:B")
		i.stop()

		rc = new(receiver)
		open(t, config(dir, rc)).want(Delivered, Delivered)
		if n := len(rc.accepted()); n > 2 {
			t.Errorf("what was refused was delivered: %v", rc.accepted())
		}
	})
}

// A tenant's code may be long. bbolt's keys may not, and one webhook must not stop
// the inbox for all.
func TestLongTenantCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(receiver)
		i := open(t, config(t.TempDir(), rc))
		_, long := i.Keep(webhook(strings.Repeat("t", bbolt.MaxKeySize), "A"))
		if i.Err() != nil {
			t.Fatalf("broken by one webhook (%v): %v", long, i.Err())
		}
		if long != nil {
			t.Errorf("refused: %v", long)
		}
		i.keep("u", "A")
	})
}

// Whoever comes after the end is told so. The admin port closes last.
func TestNobodyWaitsForAClosedInbox(t *testing.T) {
	i, err := Open(config(t.TempDir(), new(receiver)))
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	for name, call := range map[string]func() error{
		"keep":      func() error { _, err := i.Keep(webhook("t", "A")); return err },
		"forget":    func() error { _, err := i.Forget("t"); return err },
		"redeliver": func() error { return i.Redeliver(1, true) },
		"list":      func() error { _, err := i.List(Filter{}); return err },
	} {
		go func() { done <- call() }()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		case <-time.After(time.Second):
			t.Errorf("%s waits for ever", name)
		}
	}
}

// What the store hands out is nobody else's memory: bbolt's pages are used again.
func TestReadOutlivesItsTransaction(t *testing.T) {
	i, err := Open(config(t.TempDir(), new(receiver)))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	body := strings.Repeat("first", 2000)
	if _, err := i.Keep(webhook("t", body)); err != nil {
		t.Fatal(err)
	}
	r, err := i.store.Read(1)
	if err != nil {
		t.Fatal(err)
	}
	item, err := i.Show(1)
	if err != nil {
		t.Fatal(err)
	}
	s := i.store.(*boltStore)
	if err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(recordBucket).Delete(idKey(1)) }); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		if _, err := i.Keep(webhook(fmt.Sprint("u", n), strings.Repeat("other", 2000))); err != nil {
			t.Fatal(err)
		}
	}
	if string(r.webhook.Body) != body || string(item.Body) != body {
		t.Error("the body has changed")
	}
}

func BenchmarkKeep(b *testing.B) {
	i, err := Open(config(b.TempDir(), new(receiver)))
	if err != nil {
		b.Fatal(err)
	}
	defer i.Close()
	s := i.store.(*boltStore)
	s.db.NoSync = true
	body := strings.Repeat("x", 2000)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		if _, err := i.Keep(webhook(fmt.Sprint("t", n%1000), body+fmt.Sprint(n))); err != nil {
			b.Fatal(err)
		}
	}
}
