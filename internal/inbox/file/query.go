package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// The reading half: transactions of their own, beside the writer, with what the writer has
// not written yet laid over them.

// get returns what the buckets hold of a record.
func get(tx *bbolt.Tx, id uint64) (value, status []byte) {
	key := record.IDKey(id)
	return tx.Bucket(recordBucket).Get(key), tx.Bucket(statusBucket).Get(key)
}

// read makes a record of what the buckets hold. Where that is damaged it is parked, and
// says so.
func read(id uint64, value, status []byte, whole bool) *record.Record {
	r := &record.Record{ID: id}
	var err, damaged error
	r.Status, err = record.DecodeStatus(status)
	if whole {
		r.Webhook, _, damaged = record.Decode(value)
	} else {
		r.Webhook, damaged = record.DecodeSlim(value)
	}
	if r.Webhook == nil {
		r.Webhook = new(webhookgate.Webhook)
	}
	if r.Status.Changed.IsZero() {
		r.Status.Changed = r.Webhook.Received
	}
	if errors.Join(err, damaged) != nil {
		r.Status.State, r.Status.Why = record.Parked, record.ErrDamaged.Error()
	}
	return r
}

// Content reads a webhook whole.
func (t *term) Content(_ context.Context, id uint64) (w *webhookgate.Webhook, err error) {
	err = t.view(func(tx *bbolt.Tx) error {
		value, _ := get(tx, id)
		if value == nil {
			return record.ErrNotFound
		}
		w, _, err = record.Decode(value)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("webhook %d: %w", id, err)
	}
	return w, nil
}

// List returns the entries that f selects, newest first.
func (s *Store) List(f record.Filter) ([]record.Entry, error) {
	var out []record.Entry
	notes := s.unwrittenNotes()
	err := s.view(func(tx *bbolt.Tx) error {
		status := tx.Bucket(statusBucket)
		c := tx.Bucket(recordBucket).Cursor()
		k, v := c.Last()
		if f.Before != 0 {
			if k, _ = c.Seek(record.IDKey(f.Before)); k != nil {
				k, v = c.Prev()
			} else {
				k, v = c.Last()
			}
		}
		for ; k != nil && (f.Limit == 0 || len(out) < f.Limit); k, v = c.Prev() {
			r := read(record.KeyID(k), v, status.Get(k), f.Search != "")
			if status, ok := notes[r.ID]; ok {
				r.Status = status
			}
			if e := r.Entry(); f.Match(&e, r.Webhook.Body) {
				out = append(out, e)
			}
		}
		return nil
	})
	return out, err
}

// Show returns a webhook with its content, and that of its tenant's which was taken before it.
func (s *Store) Show(id uint64) (item *record.Item, err error) {
	notes := s.unwrittenNotes()
	err = s.view(func(tx *bbolt.Tx) error {
		value, status := get(tx, id)
		if value == nil {
			return record.ErrNotFound
		}
		r := read(id, value, status, true)
		if status, ok := notes[id]; ok {
			r.Status = status
		}
		item = &record.Item{Entry: r.Entry(), Header: r.Webhook.Header, Body: r.Webhook.Body}
		if w, before, err := record.Decode(value); err == nil && w.Snapshot { // else as much of it as there is
			item.Previous, item.Before = previous(tx, before, notes)
		}
		return nil
	})
	return item, err
}

// lookBack is how many webhooks of a tenant are looked through for a snapshot that was taken.
const lookBack = 100

// previous returns the last snapshot that was taken, from one of a tenant's webhooks on backwards, and the
// id of the last one, taken or not.
func previous(tx *bbolt.Tx, id uint64, notes map[uint64]record.Status) (taken *record.Previous, last uint64) {
	for range lookBack {
		value, status := get(tx, id)
		w, before, err := record.Decode(value)
		if err != nil {
			break
		}
		state := read(id, value, status, false).Status.State
		if note, ok := notes[id]; ok {
			state = note.State
		}
		if w.Snapshot && last == 0 {
			last = id
		}
		if w.Snapshot && state.Taken() {
			return &record.Previous{ID: id, Body: w.Body}, last
		}
		id = before
	}
	return nil, last
}

// A lane's snapshot is the last one that was taken in, however it fares with its receiver: the record
// of that id, for as long as the history has it. Then its essence stays, as a record behind its id. One
// with another id is of an older snapshot.

func (s *Store) keepSnapshot(tx *bbolt.Tx, id uint64, w *webhookgate.Webhook) error {
	c := *w
	c.Header = nil
	if s.cfg.Essence != nil {
		c.Body = s.cfg.Essence(w.Body)
	}
	return tx.Bucket(snapshotBucket).Put(record.LaneKey(w.Lane), append(record.IDKey(id), record.Encode(&c, 0)...))
}

// snapshot is the record of the lane's snapshot; nil: it was damaged when the history dropped it.
func (m *memory) snapshot(tx *bbolt.Tx) []byte {
	key := record.IDKey(m.Snapshot)
	if value := tx.Bucket(recordBucket).Get(key); value != nil {
		return value
	}
	if value, ok := bytes.CutPrefix(tx.Bucket(snapshotBucket).Get(record.LaneKey(m.Lane)), key); ok {
		return value
	}
	return nil
}

// Snapshot reads the last snapshot that was taken in for a lane, and its id.
func (s *Store) Snapshot(_ context.Context, lane webhookgate.Lane) (w *webhookgate.Webhook, id uint64, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		m, _ := recall(tx, lane) // as much of it as there is
		if m.Snapshot == 0 {
			return record.ErrNotFound
		}
		id = m.Snapshot
		w, _, err = record.Decode(m.snapshot(tx))
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("the last snapshot of tenant %q: %w", lane.Tenant, err)
	}
	return w, id, nil
}

// tellSnapshots tells OnSnapshot of those that are there, also of a damaged one: a tenant that could
// not be told is unknown, and one of that code on another platform would answer for it.
func (s *Store) tellSnapshots(tx *bbolt.Tx, lanes map[webhookgate.Lane]ends) error {
	return tx.Bucket(laneBucket).ForEach(func(k, v []byte) error {
		m, err := readMemory(tx, k, v)
		if err != nil || !bytes.Equal(record.LaneKey(m.Lane), k) {
			s.tellDamaged(m.Lane)
		} else if newest := lanes[m.Lane].newest; m.Newest < newest {
			return errDamaged(fmt.Sprintf("what it remembers of a tenant is older than webhook %d", newest))
		}
		if m.Snapshot == 0 || s.cfg.OnSnapshot == nil {
			return nil
		}
		if _, err := record.Unseal(m.snapshot(tx)); err != nil {
			s.cfg.Log.Error("last snapshot of a tenant is damaged: what it may use is not known until its next webhook",
				"platform", m.Lane.Platform, "tenant", m.Lane.Tenant)
		}
		s.cfg.OnSnapshot(m.Lane, m.Snapshot, nil)
		return nil
	})
}

// Following says that all snapshots are known: nobody else takes any in.
func (s *Store) Following() (stale time.Duration, ready bool) { return 0, true }
