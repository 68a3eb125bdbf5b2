package file

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Each webhook has a status. Where either is lost, as one bit in a key is enough for, usher says so; and an
// old webhook whose status is lost is not taken for one that waits: it would undo what came after it.
func TestLostHalf(t *testing.T) {
	for name, lose := range map[string]func(tx *bbolt.Tx) error{
		"status": func(tx *bbolt.Tx) error { return tx.Bucket(statusBucket).Delete(record.IDKey(1)) },
		"key of a status": func(tx *bbolt.Tx) error {
			b := tx.Bucket(statusBucket)
			return errors.Join(b.Put(record.IDKey(1<<40+1), bytes.Clone(b.Get(record.IDKey(1)))), b.Delete(record.IDKey(1)))
		},
		"key of a record": func(tx *bbolt.Tx) error {
			b := tx.Bucket(recordBucket)
			return errors.Join(b.Put(record.IDKey(1<<40+1), bytes.Clone(b.Get(record.IDKey(1)))), b.Delete(record.IDKey(1)))
		},
		"key that is none": func(tx *bbolt.Tx) error {
			b := tx.Bucket(recordBucket)
			return errors.Join(b.Put([]byte{1}, bytes.Clone(b.Get(record.IDKey(1)))), b.Delete(record.IDKey(1)))
		},
		"record": func(tx *bbolt.Tx) error { return tx.Bucket(recordBucket).Delete(record.IDKey(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rc := new(inboxtest.Receiver)
				cfg := config(t.TempDir(), rc)
				i := open(t, cfg)
				i.keep("t", "A")
				i.keep("t", "B")
				time.Sleep(time.Second)
				i.must(i.db.Update(lose))
				i.stop()
				log := newErrorLog()
				cfg.logTo(slog.New(log))
				i = open(t, cfg)
				i.keep("u", "C")
				time.Sleep(time.Hour)
				rc.Want(t, "t:A", "t:B", "u:C")
				if len(*log.lines) == 0 {
					t.Error("nothing is reported")
				}
				if _, err := i.List(record.Filter{}); err != nil {
					t.Error(err)
				}
				if _, err := i.Erase("p", "t"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A lane's memory under another key, as one bit of it is enough for, is reported.
func TestMisplacedMemory(t *testing.T) {
	log := newErrorLog()
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	cfg.OnSnapshot = func(webhookgate.Lane, uint64, *webhookgate.Webhook) {}
	cfg.logTo(slog.New(log))
	s := openStore(t, cfg)
	w := inboxtest.Webhook("t", "A")
	_, err := s.Append(w, false)
	err = errors.Join(err, s.db.Update(func(tx *bbolt.Tx) error {
		b, key := tx.Bucket(laneBucket), record.LaneKey(w.Lane)
		value := bytes.Clone(b.Get(key))
		err := b.Delete(key)
		key[5] ^= 4
		return errors.Join(err, b.Put(key, value))
	}), s.Close())
	if err != nil {
		t.Fatal(err)
	}
	openStore(t, cfg)
	if len(*log.lines) != 1 {
		t.Errorf("reported: %q", *log.lines)
	}
}

// bbolt has two headers, and goes back to the older one if the newer one is damaged: what the last
// transaction had is gone then, and nobody would know.
func TestDamagedHeader(t *testing.T) {
	for page := range 2 {
		log := newErrorLog()
		cfg := config(t.TempDir(), new(inboxtest.Receiver))
		cfg.logTo(slog.New(log))
		s := openStore(t, cfg)
		if _, err := s.Append(inboxtest.Webhook("t", "A"), false); err != nil {
			t.Fatal(err)
		}
		size := s.db.Info().PageSize
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		b[page*size+16+32] ^= 1
		if err := os.WriteFile(cfg.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		openStore(t, cfg)
		if len(*log.lines) != 1 {
			t.Errorf("page %d: reported: %q", page, *log.lines)
		}
	}
}

// A damaged memory is made anew once, and not for each webhook of its tenant that the history drops: all
// records are read for that, while senders wait.
func TestDamagedMemoryIsRebuiltOnce(t *testing.T) {
	log := newErrorLog()
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	cfg.logTo(slog.New(log))
	p := openPast(t, cfg)
	p.batch(1500, time.Now(), delivered) // three of each tenant
	err := p.db.Update(func(tx *bbolt.Tx) error {
		err := damage(tx, laneBucket, record.LaneKey(inboxtest.Webhook("t0", "").Lane))
		return errors.Join(err, p.drop(tx, record.IDKey(1)), p.drop(tx, record.IDKey(501)))
	})
	if err != nil || len(*log.lines) != 1 {
		t.Errorf("reported: %q, %v", *log.lines, err)
	}
}

// What comes takes the place of nothing that is there, though a bit of the sequence is damaged.
func TestDamagedSequence(t *testing.T) {
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	s := openStore(t, cfg)
	for _, tenant := range []string{"t", "u", "v", "w"} {
		if _, err := s.Append(inboxtest.Webhook(tenant, "A"), false); err != nil {
			t.Fatal(err)
		}
	}
	err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(recordBucket).SetSequence(0) })
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, cfg)
	if _, err := s.Append(inboxtest.Webhook("x", "B"), false); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(record.Filter{}); err != nil || len(all) != 5 || all[0].Tenant != "x" || all[0].ID != 5 {
		t.Errorf("%+v, %v", all, err)
	}
}

// A file whose parts are of several moments, as a copy is that was made while usher wrote, is not used: it
// would bring back what is long overtaken.
func TestPartsOfSeveralMoments(t *testing.T) {
	for name, bucket := range map[string][]byte{"statuses": statusBucket, "memories": laneBucket} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rc := new(inboxtest.Receiver)
				cfg := config(t.TempDir(), rc)
				i := open(t, cfg)
				i.keep("t", "A")
				key := record.IDKey(1)
				if name == "memories" {
					key = record.LaneKey(inboxtest.Webhook("t", "").Lane)
				}
				var old []byte
				i.must(i.view(func(tx *bbolt.Tx) error { old = bytes.Clone(tx.Bucket(bucket).Get(key)); return nil }))
				i.keep("t", "B")
				time.Sleep(time.Second)
				i.must(i.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(key, old) }))
				i.stop()
				if _, err := Open(cfg.Config, courier.New(cfg.courier)); err == nil || !strings.Contains(err.Error(), "damaged") {
					t.Errorf("opened: %v", err)
				}
			})
		})
	}
}
