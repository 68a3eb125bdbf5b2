package file

import (
	"bytes"
	"errors"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// erasePatience is how long an erasure waits for a delivery that is under way.
const erasePatience = 15 * time.Second

// Erase deletes all that is kept of a tenant: what waits, what is parked, the history, the last
// snapshot, and what dedup remembers. It says how many webhooks that were.
func (s *Store) Erase(platform, tenant string) (int, error) {
	lane := webhookgate.Lane{Platform: platform, Tenant: tenant}
	s.courier.Stop(lane)
	defer s.courier.GoOn(lane)
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r := s.do(&op{act: func(tx *bbolt.Tx, o *op) error { return s.erase(tx, o, lane) }})
		if !errors.Is(r.err, errAgain) {
			return r.count, r.err
		}
		if time.Since(began) > erasePatience {
			return 0, record.ErrBusy
		}
	}
}

func (s *Store) erase(tx *bbolt.Tx, o *op, lane webhookgate.Lane) error {
	known, ok := s.courier.RemoveAll(s.term, lane)
	if !ok {
		o.result.err = errAgain
		return nil
	}
	// What came, or was sent again, in this very transaction has not reached the courier yet.
	for _, other := range s.batch {
		if r := other.result.deliver; r != nil && r.Webhook.Lane == lane {
			other.result.deliver = nil
		}
	}
	records := tx.Bucket(recordBucket)
	gone := make(map[uint64]int64) // size
	err := records.ForEach(func(k, v []byte) error {
		if w, err := record.DecodeSlim(v); err == nil && w.Lane == lane {
			gone[record.KeyID(k)] = int64(len(v))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range known { // one that was damaged since does not tell whose it is
		gone[r.ID] = int64(len(records.Get(record.IDKey(r.ID))))
	}
	s.void(func(id uint64) bool { _, ok := gone[id]; return ok })
	status := tx.Bucket(statusBucket)
	for id, size := range gone {
		key := record.IDKey(id)
		if record.Finished(status.Get(key)) {
			s.history.remove(size)
		} else {
			s.used.Add(-size)
		}
		if err := errors.Join(status.Delete(key), records.Delete(key)); err != nil {
			return err
		}
	}
	key := record.LaneKey(lane)
	o.result.count, o.result.erased, o.result.upTo = len(gone), lane, records.Sequence()
	return errors.Join(tx.Bucket(laneBucket).Delete(key), tx.Bucket(snapshotBucket).Delete(key))
}

// Platforms returns those on which a tenant is known.
func (s *Store) Platforms(tenant string) (all []string, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket(laneBucket).Cursor()
		prefix := record.TenantKey(tenant)
		for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if m, _ := readMemory(tx, k, v); m.Lane.Tenant == tenant {
				all = append(all, m.Lane.Platform)
			}
		}
		return nil
	})
	return all, err
}
