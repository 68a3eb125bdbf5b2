package file

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

// pastStore is a store whose writer has ended: the test commits itself.
type pastStore struct {
	*Store
	t    *testing.T
	path string
	body []byte
	next uint64
}

func newPast(t *testing.T, size int) *pastStore {
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	cfg.DedupWindow = time.Minute
	p := openPast(t, cfg)
	p.body = bytes.Repeat([]byte("x"), size)
	return p
}

func openPast(t *testing.T, cfg setup) *pastStore {
	p := &pastStore{t: t, path: cfg.Path, Store: openStore(t, cfg)}
	p.do(&op{stop: true})
	<-p.closed
	t.Cleanup(func() { p.db.Close() })
	p.db.NoSync = true
	return p
}

// batch takes n webhooks in and has them end as state tells, in one transaction.
func (p *pastStore) batch(n int, changed time.Time, state func(id uint64) record.State) {
	p.t.Helper()
	var ops []*op
	for range n {
		w := inboxtest.Webhook(fmt.Sprint("t", p.next%500), "")
		w.Snapshot, w.Body = false, p.body
		ops = append(ops, &op{webhook: w})
		p.next++
		if s := state(p.next); s == record.Waiting {
			w.Lane.Type = "waits" // a lane of its own: nothing is delivered behind what waits
		} else {
			ops = append(ops, &op{note: &record.Record{ID: p.next, Webhook: w, Status: record.Status{State: s, Changed: changed}}})
		}
	}
	if err := p.write(ops...); err != nil {
		p.t.Fatal(err)
	}
}

func delivered(uint64) record.State { return record.Delivered }

func (p *pastStore) size() int64 {
	info, err := os.Stat(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	return info.Size()
}

// write has the test commit in the writer's place.
func (p *pastStore) write(ops ...*op) error {
	p.Store.batch = ops
	return p.commit()
}

// check compares what is counted with what is there, and returns what waits or is parked.
func (p *pastStore) check() (count int, unfinished []*record.Record) {
	p.t.Helper()
	fresh := &Store{cfg: p.cfg}
	err := p.db.View(func(tx *bbolt.Tx) (err error) {
		unfinished, _, err = fresh.load(tx)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	h, used := fresh.history, fresh.used.Load()
	if h.count != p.history.count || h.bytes != p.history.bytes || used != p.used.Load() {
		p.t.Errorf("counted %d with %d bytes, and %d that wait; there are %d with %d, and %d",
			p.history.count, p.history.bytes, p.used.Load(), h.count, h.bytes, used)
	}
	return h.count, unfinished
}

func TestHistoryDoesNotGrow(t *testing.T) {
	t.Parallel()
	total := 50_000
	if testing.Short() {
		total = 25_000
	}
	p := newPast(t, 500)
	state := func(id uint64) record.State {
		switch id % 1000 {
		case 1:
			return record.Parked
		case 2:
			return record.Waiting
		}
		return record.Delivered
	}
	var grown int64
	for p.next < uint64(total) {
		p.batch(100, time.Now(), state)
		if p.next == 20_000 {
			grown = p.size()
		}
	}
	n, unfinished := p.check()
	if n > keepCount+keepCount/10+200 {
		t.Errorf("%d are kept", n)
	}
	if now := p.size(); now > grown*5/4 {
		t.Errorf("the file has grown from %d to %d", grown, now)
	}
	if want := 2 * total / 1000; len(unfinished) != want {
		t.Errorf("%d of %d that wait or are parked are left", len(unfinished), want)
	}
	entries, err := p.List(record.Filter{State: record.Delivered, Limit: 1})
	if err != nil || len(entries) != 1 || entries[0].ID != uint64(total) {
		t.Errorf("the newest is gone: %v, %v", entries, err)
	}
}

// More may end in one transaction than are trimmed in one.
func TestHistoryKeepsUp(t *testing.T) {
	t.Parallel()
	p := newPast(t, 10)
	for p.next < 30_000 {
		p.batch(500, time.Now(), delivered)
	}
	if n, _ := p.check(); n > keepCount+keepCount/10+1000 {
		t.Errorf("%d are kept", n)
	}
}

// When very many end at once, as when a newer one supersedes all that wait, a sender does not wait until as
// many are deleted. That is done soon after, though nothing comes.
func TestHistoryDoesNotHoldUp(t *testing.T) {
	const many = 40_000
	p := newPast(t, 10)
	p.batch(many, time.Now(), delivered)
	if n := p.history.count; n < many-trimMost {
		t.Errorf("%d were deleted in one transaction", many-n)
	}
	transactions := 0
	for ; p.history.pause() < time.Second; transactions++ {
		if err := p.write(); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := p.check(); n > keepCount+keepCount/10 || transactions > many/trimAtOnce {
		t.Errorf("%d are kept after %d transactions", n, transactions)
	}
}

func TestHistoryBytes(t *testing.T) {
	t.Parallel()
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
		p.batch(100, old, func(id uint64) record.State {
			if id%100 == 7 {
				return record.Parked
			}
			return record.Delivered
		})
	}
	p.batch(5, time.Now(), delivered)
	for range 10 {
		p.history.next = time.Time{}
		if err := p.write(&op{note: &record.Record{ID: 7, Webhook: inboxtest.Webhook("t", ""), Status: record.Status{State: record.Parked, Changed: old}}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, unfinished := p.check(); n != 5 || len(unfinished) != 10 {
		t.Errorf("%d are kept, 5 are young; %d of 10 parked ones are left", n, len(unfinished))
	}
	// What a lane's newest was is known for as long as there is a lane, and when that was:
	// an old one must not be put in its place without a word.
	lanes := 0
	err := p.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(laneBucket).ForEach(func(_, v []byte) error {
			m, err := decodeMemory(v)
			if lanes++; err != nil || m.Newest == 0 || m.Received.IsZero() {
				t.Errorf("%+v, %v", m, err)
			}
			return nil
		})
	})
	if lanes != 500 || err != nil {
		t.Errorf("%d lanes are remembered, %v", lanes, err)
	}
}

// A clock was years ahead, and is right now: what was finished meanwhile is kept as long as all else from now on, and
// counts for dedup no longer than before.
func TestHistoryOfAClockAhead(t *testing.T) {
	p := newPast(t, 10)
	now := time.Now()
	p.batch(500, now.AddDate(10, 0, 0), delivered)
	left := func(at time.Time) int {
		t.Helper()
		p.history.next = time.Time{}
		for range 10 {
			if err := p.db.Update(func(tx *bbolt.Tx) error { _, err := p.trim(tx, at); return err }); err != nil {
				t.Fatal(err)
			}
		}
		n, _ := p.check()
		return n
	}
	if n := left(now); n != 500 {
		t.Errorf("%d of 500 are left when the clock is put right", n)
	}
	if e, err := p.List(record.Filter{}); err != nil || record.Held(e[0].State, e[0].Changed, p.cfg.DedupWindow) {
		t.Errorf("the last counts as delivered just now: %+v, %v", e[0], err)
	}
	if n := left(now.Add(keepAge - time.Hour)); n != 500 {
		t.Errorf("%d of 500 are left before their time is over", n)
	}
	if n := left(now.Add(keepAge + time.Minute)); n != 0 {
		t.Errorf("%d are kept longer", n)
	}
}

// What is finished goes after its time, also when something that came before it was finished later, and
// when nothing comes in any more.
func TestHistoryEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(422))
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.Set(nil)
		i.keep("u", "B")
		time.Sleep(keepAge / 2)
		i.want(record.Parked, record.Delivered)
		i.must(i.Discard(1))
		time.Sleep(keepAge/2 + time.Hour)
		i.want(record.Discarded)
		time.Sleep(keepAge / 2)
		i.want()
	})
}
