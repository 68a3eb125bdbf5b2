package inbox

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// pastStore is a store whose writer has nothing to do: the test commits itself.
type pastStore struct {
	*boltStore
	t    *testing.T
	path string
	body []byte
	next uint64
}

func newPast(t *testing.T, size int) *pastStore {
	p := &pastStore{t: t, path: filepath.Join(t.TempDir(), "inbox.db"), body: bytes.Repeat([]byte("x"), size)}
	i, err := Open(Config{URL: "file:" + p.path, DedupSize: 100, DedupWindow: time.Minute, Log: slog.New(slog.DiscardHandler), Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	p.boltStore = i.store.(*boltStore)
	p.db.NoSync = true
	return p
}

// batch takes n webhooks in and has them end as state tells, in one transaction.
func (p *pastStore) batch(n int, changed time.Time, state func(id uint64) State) {
	p.t.Helper()
	var ops []*op
	for range n {
		w := webhook(fmt.Sprint("t", p.next%500), "")
		w.Snapshot, w.Body = false, p.body
		ops = append(ops, &op{webhook: w})
		p.next++
		if s := state(p.next); s != Waiting {
			ops = append(ops, &op{record: &record{id: p.next, webhook: w, status: Status{State: s, Changed: changed}}})
		}
	}
	if err := p.commit(ops); err != nil {
		p.t.Fatal(err)
	}
}

func delivered(uint64) State { return Delivered }

func (p *pastStore) size() int64 {
	info, err := os.Stat(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	return info.Size()
}

// check compares what history counts with what is there.
func (p *pastStore) check() (count int) {
	p.t.Helper()
	var h history
	if err := p.db.View(h.load); err != nil {
		p.t.Fatal(err)
	}
	if h.count != p.history.count || h.bytes != p.history.bytes {
		p.t.Errorf("counted %d with %d bytes, there are %d with %d", p.history.count, p.history.bytes, h.count, h.bytes)
	}
	return h.count
}

func TestHistoryDoesNotGrow(t *testing.T) {
	total := 50_000
	if testing.Short() {
		total = 25_000
	}
	p := newPast(t, 500)
	unfinished := func(id uint64) State {
		switch id % 1000 {
		case 1:
			return Parked
		case 2:
			return Waiting
		}
		return Delivered
	}
	var grown int64
	for p.next < uint64(total) {
		p.batch(100, time.Now(), unfinished)
		if p.next == 20_000 {
			grown = p.size()
		}
	}
	if n := p.check(); n > keepCount+keepCount/10+200 {
		t.Errorf("%d are kept", n)
	}
	if now := p.size(); now > grown*5/4 {
		t.Errorf("the file has grown from %d to %d", grown, now)
	}
	records, err := p.Unfinished()
	if want := 2 * total / 1000; err != nil || len(records) != want {
		t.Errorf("%d of %d that wait or are parked are left, %v", len(records), want, err)
	}
	entries, err := p.List(Filter{State: Delivered, Limit: 1})
	if err != nil || len(entries) != 1 || entries[0].ID != uint64(total) {
		t.Errorf("the newest is gone: %v, %v", entries, err)
	}
}

// More may end in one transaction than are trimmed in one.
func TestHistoryKeepsUp(t *testing.T) {
	p := newPast(t, 10)
	for p.next < 30_000 {
		p.batch(500, time.Now(), delivered)
	}
	if n := p.check(); n > keepCount+keepCount/10+1000 {
		t.Errorf("%d are kept", n)
	}
}

func TestHistoryBytes(t *testing.T) {
	p := newPast(t, 1<<20)
	if testing.Short() {
		t.Skip("writes 350 MB")
	}
	for p.next < 350 {
		p.batch(10, time.Now(), delivered)
	}
	p.check()
	if p.history.bytes > keepBytes+keepBytes/10+(10<<20) {
		t.Errorf("%d MiB are kept", p.history.bytes>>20)
	}
}

func TestHistoryAge(t *testing.T) {
	p := newPast(t, 10)
	old := time.Now().Add(-keepAge - time.Hour)
	for range 10 {
		p.batch(100, old, func(id uint64) State {
			if id%100 == 7 {
				return Parked
			}
			return Delivered
		})
	}
	p.batch(5, time.Now(), delivered)
	for range 10 {
		p.history.checked = time.Time{}
		if err := p.commit([]*op{{record: &record{id: 7, webhook: webhook("t", ""), status: Status{State: Parked, Changed: old}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.check(); n != 5 {
		t.Errorf("%d are kept, 5 are young", n)
	}
	if records, _ := p.Unfinished(); len(records) != 10 {
		t.Errorf("%d of 10 parked ones are left", len(records))
	}
	// Lanes of which nothing is left don't pile up.
	lanes := 0
	if err := p.db.View(func(tx *bbolt.Tx) error { lanes = tx.Bucket(laneBucket).Stats().KeyN; return nil }); err != nil || lanes > 20 {
		t.Errorf("%d lanes are remembered, %v", lanes, err)
	}
}
