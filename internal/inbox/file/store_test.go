package file

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/testkit"
	"usher/webhookgate"
)

func TestDeliversInOrderAndDedups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Slow(time.Second)
		i := open(t, config(t.TempDir(), rc))
		for _, step := range []struct {
			body string
			dup  bool
		}{{"A", false}, {"A", true}, {"B", false}, {"A", false}, {"A", true}} {
			if got := i.keep("t", step.body); got != step.dup {
				t.Errorf("%s: duplicate %v", step.body, got)
			}
		}
		time.Sleep(10 * time.Second)
		rc.Want(t, "t:A", "t:B", "t:A")
		if !i.keep("t", "A") {
			t.Error("a copy within the window was taken in")
		}
		time.Sleep(10 * time.Minute)
		if i.keep("t", "A") {
			t.Error("a copy after the window was dropped")
		}
		time.Sleep(2 * time.Second)
		i.want(record.Delivered, record.Delivered, record.Delivered, record.Delivered)
	})
}

// What waits, how it was tried, and what the lanes remember survive a restart.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(inboxtest.Receiver)
		i := open(t, config(dir, rc))
		i.keep("held", "A")
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(500))
		i.keep("t", "A")
		time.Sleep(time.Second)
		i.keep("t", "B")
		i.stop()

		i = open(t, config(dir, rc))
		if _, err := Open(config(dir, rc).Config, courier.New(config(dir, rc).courier)); err == nil || !strings.Contains(err.Error(), "another usher has it open") {
			t.Errorf("two ushers on one file: %v", err)
		}
		if !i.keep("held", "A") {
			t.Error("what the receiver holds was forgotten")
		}
		if !i.keep("t", "B") {
			t.Error("the tail that waits was forgotten")
		}
		if item, err := i.Show(2); err != nil || item.Tries == 0 || len(item.Attempts) != item.Tries {
			t.Errorf("the tries were forgotten: %+v, %v", item, err)
		}
		rc.Set(nil)
		time.Sleep(10 * time.Minute)
		rc.Want(t, "held:A", "t:A", "t:B")
		if item, err := i.Show(3); err != nil || item.Previous == nil || item.Previous.ID != 2 || string(item.Previous.Body) != "A" || item.Header.Get("X-Test") != "1" {
			t.Errorf("%+v, %v", item, err)
		}
	})
}

func TestSyncFailureIsFinal(t *testing.T) {
	dir := t.TempDir()
	rc := new(inboxtest.Receiver)
	i := openStore(t, config(dir, rc))
	if _, err := i.Append(inboxtest.Webhook("t", "A"), false); err != nil {
		t.Fatal(err)
	}
	healthy := i.update
	i.update = func(func(*bbolt.Tx) error) error { return errors.New("input/output error") }
	if _, err := i.Append(inboxtest.Webhook("t", "B"), false); err == nil {
		t.Error("taken in though the sync failed")
	}
	i.update = healthy
	if _, err := i.Append(inboxtest.Webhook("t", "C"), false); err == nil || i.Err() == nil {
		t.Error("a sync that failed was tried again")
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	i = openStore(t, config(dir, rc))
	if entries, _ := i.List(record.Filter{}); len(entries) != 1 || entries[0].ID != 1 {
		t.Errorf("after a restart: %+v", entries)
	}
}

// The disk is full: what was taken in before is delivered and there after a restart,
// what was refused is not, and nobody is told 200 any more.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(inboxtest.Receiver)
		rc.Slow(time.Second)
		i := open(t, config(dir, rc))
		i.keep("t", "A")
		i.keep("t", "B")
		s := i.Store
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
				if dup, err := i.Append(inboxtest.Webhook(fmt.Sprint("t", n%5), "C"), false); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("%q, %v", dup, err)
				}
			})
		}
		senders.Wait()
		s.update = update // room again; that tells nothing of the file
		if _, err := i.Append(inboxtest.Webhook("t", "B"), false); err == nil || i.Err() == nil {
			t.Error("a copy was acknowledged after the fault")
		}
		if err := i.Redeliver(1, true); err == nil {
			t.Error("a redelivery was acknowledged after the fault")
		}
		if _, err := i.Forget(nil, "t"); err == nil {
			t.Error("forgotten after the fault")
		}
		time.Sleep(time.Minute)
		rc.Want(t, "t:A", "t:B")
		i.stop()

		rc = new(inboxtest.Receiver)
		open(t, config(dir, rc)).want(record.Delivered, record.Delivered)
		if n := len(rc.Accepted()); n > 2 {
			t.Errorf("what was refused was delivered: %v", rc.Accepted())
		}
	})
}

// A start writes nothing into a file that is in order: where the disk is full it could not, and what
// waits there would wait until somebody makes room.
func TestStartWritesNothing(t *testing.T) {
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	s := openStore(t, cfg)
	if _, err := s.Append(inboxtest.Webhook("t", "A"), false); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := openStore(t, cfg).Close(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(cfg.Path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file has changed (%v)", err)
	}
}

// A tenant's code may be long. bbolt's keys may not, and one webhook must not stop
// the inbox for all.
func TestLongTenantCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		_, long := i.Append(inboxtest.Webhook(strings.Repeat("t", bbolt.MaxKeySize), "A"), false)
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
	i := openStore(t, config(t.TempDir(), new(inboxtest.Receiver)))
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	for name, call := range map[string]func() error{
		"keep":      func() error { _, err := i.Append(inboxtest.Webhook("t", "A"), false); return err },
		"forget":    func() error { _, err := i.Forget(nil, "t"); return err },
		"discard":   func() error { return i.Discard(1) },
		"redeliver": func() error { return i.Redeliver(1, true) },
		"list":      func() error { _, err := i.List(record.Filter{}); return err },
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
	i := openStore(t, config(t.TempDir(), new(inboxtest.Receiver)))
	body := strings.Repeat("first", 2000)
	if _, err := i.Append(inboxtest.Webhook("t", body), false); err != nil {
		t.Fatal(err)
	}
	w, err := i.term.Content(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	item, err := i.Show(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(recordBucket).Delete(record.IDKey(1)) }); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		if _, err := i.Append(inboxtest.Webhook(fmt.Sprint("u", n), strings.Repeat("other", 2000)), false); err != nil {
			t.Fatal(err)
		}
	}
	if string(w.Body) != body || string(item.Body) != body {
		t.Error("the body has changed")
	}
}

func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := openStore(t, config(t.TempDir(), new(inboxtest.Receiver)))
		s := i
		const disk = 5 * time.Millisecond
		s.slowDisk(disk)

		began := time.Now()
		if _, err := i.Append(inboxtest.Webhook("alone", "A"), false); err != nil || time.Since(began) != disk {
			t.Errorf("a lone webhook took %v, %v", time.Since(began), err)
		}
		before := s.syncs.Load()
		var senders sync.WaitGroup
		for n := range 64 {
			senders.Go(func() {
				time.Sleep(time.Duration(n) * disk / 64)
				if _, err := i.Append(inboxtest.Webhook(fmt.Sprint("t", n), "A"), false); err != nil {
					t.Error(err)
				}
			})
		}
		senders.Wait()
		if n := s.syncs.Load() - before; n > 4 {
			t.Errorf("64 webhooks within one sync's time took %d transactions", n)
		}
		before = s.syncs.Load()
		if dup, err := i.Append(inboxtest.Webhook("t1", "A"), false); dup == "" || err != nil || s.syncs.Load() != before {
			t.Errorf("a duplicate %q took %d transactions, %v", dup, s.syncs.Load()-before, err)
		}
	})
}

// What was delivered is in the file, and not in memory.
func TestContentIsLetGo(t *testing.T) {
	rc := new(inboxtest.Receiver)
	i := open(t, config(t.TempDir(), rc))
	kept := make([]weak.Pointer[webhookgate.Webhook], 10)
	for n := range kept {
		w := inboxtest.Webhook(fmt.Sprint("tenant-", n), "A")
		kept[n] = weak.Make(w)
		if _, err := i.Append(w, false); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "the contents let go of", func() bool {
		runtime.GC()
		return !slices.ContainsFunc(kept, func(w weak.Pointer[webhookgate.Webhook]) bool { return w.Value() != nil })
	})
}

func BenchmarkKeep(b *testing.B) {
	i := openStore(b, config(b.TempDir(), new(inboxtest.Receiver)))
	i.db.NoSync = true
	body := strings.Repeat("x", 2000)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		if _, err := i.Append(inboxtest.Webhook(fmt.Sprint("t", n%1000), body+fmt.Sprint(n)), false); err != nil {
			b.Fatal(err)
		}
	}
}
