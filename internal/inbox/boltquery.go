package inbox

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"usher/webhookgate"
)

// The reading half of boltStore: transactions of their own, beside the writer.

// Unfinished also finds records that are damaged: they come back parked.
func (s *boltStore) Unfinished() ([]*record, error) {
	var out []*record
	err := s.db.View(func(tx *bbolt.Tx) error {
		status := tx.Bucket(statusBucket)
		return tx.Bucket(recordBucket).ForEach(func(k, v []byte) error {
			b := status.Get(k)
			if finished(b) {
				return nil
			}
			r := readRecord(keyID(k), v, b)
			r.webhook.Body, r.webhook.Header = nil, nil
			out = append(out, r)
			return nil
		})
	})
	return out, err
}

// readRecord makes a record of what the buckets hold. Where that is damaged it is
// parked, and says so.
func readRecord(id uint64, recordBytes, statusBytes []byte) *record {
	r := &record{id: id, status: Status{State: Waiting}}
	var err error
	if statusBytes != nil {
		r.status, err = decodeStatus(statusBytes)
	}
	w, _, recordErr := decodeRecord(recordBytes)
	if r.webhook = w; w == nil {
		r.webhook = new(webhookgate.Webhook)
	}
	if r.status.Changed.IsZero() {
		r.status.Changed = r.webhook.Received
	}
	if err = errors.Join(err, recordErr); err != nil {
		r.status.State, r.status.Why = Parked, ErrDamaged.Error()
	}
	return r
}

func (s *boltStore) Read(id uint64) (*record, error) {
	var r *record
	err := s.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(recordBucket).Get(idKey(id))
		if v == nil {
			return ErrNotFound
		}
		if _, _, err := decodeRecord(v); err != nil {
			return err
		}
		r = readRecord(id, v, tx.Bucket(statusBucket).Get(idKey(id)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("webhook %d: %w", id, err)
	}
	return r, nil
}

func (s *boltStore) List(f Filter) ([]Entry, error) {
	var out []Entry
	err := s.db.View(func(tx *bbolt.Tx) error {
		status := tx.Bucket(statusBucket)
		c := tx.Bucket(recordBucket).Cursor()
		k, v := c.Last()
		if f.Before != 0 {
			if k, _ = c.Seek(idKey(f.Before)); k != nil {
				k, v = c.Prev()
			} else {
				k, v = c.Last()
			}
		}
		for ; k != nil && (f.Limit == 0 || len(out) < f.Limit); k, v = c.Prev() {
			r := readRecord(keyID(k), v, status.Get(k))
			if e := r.entry(); f.match(&e, r.webhook.Body) {
				out = append(out, e)
			}
		}
		return nil
	})
	return out, err
}

func (s *boltStore) Show(id uint64) (*Item, error) {
	var item *Item
	err := s.db.View(func(tx *bbolt.Tx) error {
		records := tx.Bucket(recordBucket)
		v := records.Get(idKey(id))
		if v == nil {
			return ErrNotFound
		}
		r := readRecord(id, v, tx.Bucket(statusBucket).Get(idKey(id)))
		item = &Item{Entry: r.entry(), Header: r.webhook.Header, Body: r.webhook.Body}
		_, before, err := decodeRecord(v)
		if err != nil {
			return nil // as much of it as there is
		}
		if w, _, err := decodeRecord(records.Get(idKey(before))); err == nil {
			item.Previous = &Previous{ID: before, Body: w.Body}
		}
		return nil
	})
	return item, err
}

func (s *boltStore) Newest(lane webhookgate.Lane) (e Entry, ok bool, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(recordBucket).Cursor()
		for k, v := c.Last(); k != nil && !ok; k, v = c.Prev() {
			if r := readRecord(keyID(k), v, tx.Bucket(statusBucket).Get(k)); r.webhook.Lane == lane {
				e, ok = r.entry(), true
			}
		}
		return nil
	})
	return e, ok, err
}
