package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Thousands of webhooks later the history has nothing of a tenant any more, but its last snapshot is
// there; and so it is after a restart.
func TestSnapshotOutlivesTheHistory(t *testing.T) {
	t.Parallel()
	const tenants = 300
	told := make(map[string]uint64)
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	cfg.OnSnapshot = func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) { told[lane.Tenant] = id }
	p := openPast(t, cfg)
	var ops []*op
	deliver := func(w *webhookgate.Webhook) {
		p.next++
		status := record.Status{State: record.Delivered, Changed: time.Now()}
		ops = append(ops, &op{webhook: w}, &op{note: &record.Record{ID: p.next, Webhook: w, Status: status}})
		if len(ops) == 1000 {
			if err := p.write(ops...); err != nil {
				t.Fatal(err)
			}
			ops = nil
		}
	}
	for n := range 2 * tenants {
		deliver(inboxtest.Webhook(fmt.Sprint("t", n%tenants), fmt.Sprint("state ", n)))
	}
	for p.next < tenants+2*keepCount {
		deliver(inboxtest.Webhook("busy", fmt.Sprint(p.next)))
	}
	check := func(s *Store) {
		t.Helper()
		for n := range tenants {
			want := uint64(tenants + n + 1)
			w, id, err := s.Snapshot(context.Background(), inboxtest.Webhook(fmt.Sprint("t", n), "").Lane)
			if err != nil || id != want || string(w.Body) != fmt.Sprint("state ", tenants+n) {
				t.Fatalf("tenant %d: %+v, %d, %v", n, w, id, err)
			}
		}
	}
	check(p.Store)
	if first, err := p.List(record.Filter{Before: 3 * tenants}); len(first) > 0 || err != nil {
		t.Fatalf("%d of them are still in the history, %v", len(first), err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	clear(told)
	check(openStore(t, cfg))
	if len(told) != tenants+1 || told["t7"] != tenants+8 {
		t.Errorf("told of %d tenants, of the seventh %d", len(told), told["t7"])
	}
}

// The history drops a record and keeps what its lane needs of it in one step: a crash before its end
// leaves the record.
func TestCrashWhileTheHistoryIsTrimmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := open(t, config(t.TempDir(), new(inboxtest.Receiver)))
		i.keep("t", "A")
		time.Sleep(time.Second)
		i.told = map[webhookgate.Lane]uint64{inboxtest.Webhook("t", "").Lane: 1}
		crash := errors.New("crash")
		for _, end := range []error{crash, nil} {
			if err := i.db.Update(func(tx *bbolt.Tx) error { return errors.Join(i.drop(tx, record.IDKey(1)), end) }); !errors.Is(err, end) {
				t.Fatal(err)
			}
			if got := i.snapshot("t"); got != "A" {
				t.Errorf("%v: the snapshot is %q", end, got)
			}
		}
		i.want()
		if !i.keep("t", "A") {
			t.Error("the receiver holds it, and gets it again")
		}
	})
}

// Whether the history still has it or not, what is erased is nowhere in the file.
func TestErasedSnapshot(t *testing.T) {
	for _, trimmed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config(t.TempDir(), new(inboxtest.Receiver))
			cfg.OnSnapshot = func(lane webhookgate.Lane, _ uint64, _ *webhookgate.Webhook) {
				if lane.Tenant != "t" {
					t.Error("told of", lane)
				}
			}
			i := open(t, cfg)
			i.keep("t", "content of A")
			time.Sleep(time.Second)
			if trimmed {
				i.must(i.db.Update(func(tx *bbolt.Tx) error { return i.drop(tx, record.IDKey(1)) }))
			}
			_, err := i.Erase("p", "t")
			i.must(err)
			if got := i.snapshot("t"); got != "" {
				t.Errorf("trimmed %v: the snapshot is %q", trimmed, got)
			}
			i.must(i.db.View(func(tx *bbolt.Tx) error {
				return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
					return b.ForEach(func(k, v []byte) error {
						if bytes.Contains(v, []byte("content of A")) || bytes.Contains(v, []byte("\x01t")) {
							t.Errorf("trimmed %v: %s has %q", trimmed, name, v)
						}
						return nil
					})
				})
			}))
			i.stop()
			cfg.OnSnapshot = func(lane webhookgate.Lane, _ uint64, _ *webhookgate.Webhook) { t.Error("told of", lane) }
			open(t, cfg)
		})
	}
}

// A comes, then B. What of that is damaged later must not bring A back, which is older, nor have the
// tenant unknown. B makes it whole when it comes again, and if the receiver has B it does not get it again.
func TestDamagedSnapshot(t *testing.T) {
	lane := inboxtest.Webhook("t", "").Lane
	key := record.LaneKey(lane)
	for _, c := range []struct {
		name    string
		trimmed []uint64 // before the damage
		buckets [][]byte // of what is damaged
		dropped bool     // B, after the damage
		intact  bool     // B can still be read
		copies  bool     // it is still known that the receiver has B
	}{
		{name: "nothing", intact: true, copies: true},
		{name: "record", buckets: [][]byte{recordBucket}},
		{name: "record, dropped then", trimmed: []uint64{1}, buckets: [][]byte{recordBucket}, dropped: true},
		{name: "copy", trimmed: []uint64{1, 2}, buckets: [][]byte{snapshotBucket}, copies: true},
		{name: "memory", buckets: [][]byte{laneBucket}, intact: true},
		{name: "memory, and there is a copy", trimmed: []uint64{1, 2}, buckets: [][]byte{laneBucket}, intact: true},
		{name: "memory and record", buckets: [][]byte{laneBucket, recordBucket}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := newErrorLog()
				cfg := config(t.TempDir(), new(inboxtest.Receiver))
				cfg.logTo(slog.New(log))
				i := open(t, cfg)
				for n, body := range []string{"A", "B"} {
					i.keep("t", body)
					time.Sleep(time.Second)
					if len(c.trimmed) > n {
						i.must(i.db.Update(func(tx *bbolt.Tx) error { return i.drop(tx, record.IDKey(c.trimmed[n])) }))
					}
				}
				i.must(i.db.Update(func(tx *bbolt.Tx) error {
					for _, bucket := range c.buckets {
						where := key
						if string(bucket) == string(recordBucket) {
							where = record.IDKey(2)
						}
						i.must(damage(tx, bucket, where))
					}
					if c.dropped {
						return i.drop(tx, record.IDKey(2))
					}
					return nil
				}))
				i.stop()

				told := make(map[webhookgate.Lane]uint64)
				cfg.OnSnapshot = func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) { told[lane] = id }
				i = open(t, cfg)
				i.told = told
				_, id, err := i.Snapshot(t.Context(), lane)
				if c.intact && (err != nil || i.snapshot("t") != "B") || !c.intact && !errors.Is(err, record.ErrDamaged) {
					t.Errorf("the snapshot is %d, %v", id, err)
				}
				if told[lane] != 2 {
					t.Errorf("told of %v", told)
				}
				if damaged := len(c.buckets) > 0; damaged != (len(*log.lines) > 0) {
					t.Errorf("the log has %q", *log.lines)
				}
				if got := i.keep("t", "B"); got != c.copies {
					t.Errorf("B was dropped as a copy: %v", got)
				}
				if got := i.snapshot("t"); got != "B" {
					t.Errorf("after B came again the snapshot is %q", got)
				}
			})
		})
	}
}

// A was sent again by hand after B, and came once more: the copy beside the records is newer than all of
// them, also for who has nothing else to tell by.
func TestDamagedMemoryBesideANewerCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := open(t, config(t.TempDir(), new(inboxtest.Receiver)))
		for _, body := range []string{"A", "B"} {
			i.keep("t", body)
			time.Sleep(time.Second)
		}
		i.must(i.Redeliver(1, true))
		time.Sleep(time.Second)
		if !i.keep("t", "A") {
			t.Error("the receiver holds it, and gets it again")
		}
		lane := inboxtest.Webhook("t", "").Lane
		i.told = map[webhookgate.Lane]uint64{lane: 3}
		if got := i.snapshot("t"); got != "A" {
			t.Errorf("the snapshot is %q", got)
		}
		i.must(i.db.Update(func(tx *bbolt.Tx) error { return damage(tx, laneBucket, record.LaneKey(lane)) }))
		if got := i.snapshot("t"); got != "A" {
			t.Errorf("once the memory is damaged the snapshot is %q", got)
		}
	})
}

// It is the lane's last though nothing comes of it.
func TestSnapshotThatWasNotDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(500))
		cfg := config(t.TempDir(), rc)
		cfg.courier.KeepLatest = true
		i := open(t, cfg)
		for _, body := range []string{"A", "B", "C"} {
			i.keep("t", body)
			time.Sleep(10 * time.Millisecond)
		}
		i.must(i.Discard(3))
		i.want(record.Superseded, record.Superseded, record.Discarded)
		i.told = map[webhookgate.Lane]uint64{inboxtest.Webhook("t", "").Lane: 3}
		i.must(i.db.Update(func(tx *bbolt.Tx) error {
			for id := range uint64(3) {
				i.must(i.drop(tx, record.IDKey(id+1)))
			}
			return nil
		}))
		if got := i.snapshot("t"); got != "C" {
			t.Errorf("the snapshot is %q", got)
		}
		if i.keep("t", "C") {
			t.Error("C was dropped as a copy of what the receiver does not have")
		}
	})
}
