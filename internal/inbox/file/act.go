package file

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
)

// Actions of people. The writer does them, in one step with what it decides by.

// errAgain says that the courier knows something of a record that is not in the file yet.
var errAgain = errors.New("ask again")

// Redeliver has a webhook sent again, ahead of what its lane has waiting, with a
// fresh count of tries; one that waits is tried now. What is not the latest of its lane
// would undo what came after it, and needs force.
func (s *Store) Redeliver(id uint64, force bool) error {
	for range 100 {
		err := s.do(&op{act: func(tx *bbolt.Tx, o *op) error { return s.redeliver(tx, o, id, force) }}).err
		if !errors.Is(err, errAgain) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return record.ErrBusy
}

func (s *Store) redeliver(tx *bbolt.Tx, o *op, id uint64, force bool) error {
	value, status := get(tx, id)
	if value == nil {
		o.result.err = record.ErrNotFound
		return nil
	}
	if _, _, err := record.Decode(value); err != nil {
		o.result.err = fmt.Errorf("webhook %d: %w", id, err)
		return nil
	}
	r := read(id, value, status, true)
	lane := r.Webhook.Lane
	m, err := s.memory(tx, lane)
	switch {
	case err != nil:
		return err
	case r.Status.State == record.Waiting:
		if !s.courier.Waits(lane, id) {
			o.result.err = errAgain // it was parked or delivered a moment ago
		}
		s.courier.Retry(lane, id)
		return nil
	case r.Status.State == record.Kept && s.courier.ReceiverOf(lane) == "":
		o.result.err = record.ErrKept
	case m.Newest > id && !force:
		o.result.err = &record.OverwriteError{ID: id, Latest: newest(tx, m)}
	case r.Status.State == record.Parked:
		// From here on no note of the courier's can have it superseded.
		stands, ok := s.courier.Remove(s.term, lane, id)
		if !ok {
			o.result.err = errAgain
			return nil
		}
		s.void(only(id))
		r.Status = stands.Status
	case s.isFull(int64(len(value))):
		o.result.err = record.ErrFull
	}
	if o.result.err != nil {
		return nil
	}
	m.stands(tx)
	r.SendAgain()
	if err := s.settle(tx, r); err != nil {
		return err
	}
	o.result.deliver, o.result.again = r, true
	// It is what the receiver will get last; unless something else waits in the lane, as
	// far as the store knows or the courier does. Then nothing is dropped on a guess.
	next := m.last(r)
	switch {
	case m.ID != id && m.State == record.Waiting:
		next = m.emptied()
	case m.ID == 0, !s.courier.Idle(lane):
		next = next.emptied()
	}
	return next.write(tx)
}

func only(id uint64) func(uint64) bool { return func(other uint64) bool { return other == id } }

// newest is the entry of what came last into a lane; of a copy that was not kept, of what it
// is a copy of.
func newest(tx *bbolt.Tx, m *memory) record.Entry {
	for _, id := range []uint64{m.Newest, m.ID} {
		if value, status := get(tx, id); value != nil {
			r := read(id, value, status, false)
			return r.Entry()
		}
	}
	e := record.Entry{ID: m.Newest, Webhook: m.Webhook, Platform: m.Lane.Platform, Tenant: m.Lane.Tenant, Received: m.Received}
	e.State = m.State
	return e
}

// Discard sets a webhook aside that waits or is parked: it is not delivered any more, and
// stays to be looked at.
func (s *Store) Discard(id uint64) error {
	return s.do(&op{act: func(tx *bbolt.Tx, o *op) error { return s.discard(tx, o, id) }}).err
}

func (s *Store) discard(tx *bbolt.Tx, o *op, id uint64) error {
	value, status := get(tx, id)
	if value == nil {
		o.result.err = record.ErrNotFound
		return nil
	}
	r := read(id, value, status, false)
	if r.Status.State.Finished() {
		o.result.err = record.ErrFinished
		return nil
	}
	lane := r.Webhook.Lane
	if r.Status.Why == record.ErrDamaged.Error() { // and does not tell; the courier may have known it whole
		lane = s.courier.LaneOf(id)
	}
	// Its successor may be delivered from here on. What comes of that is written later:
	// no crash can bring this one back behind it.
	stands, ok := s.courier.Remove(s.term, lane, id)
	if !ok {
		o.result.err = record.ErrBusy
		return nil
	}
	s.void(only(id))
	stands.Enter(record.Discarded, "discarded by hand")
	return s.settle(tx, &stands)
}

// Forget drops what is remembered of a tenant's lanes, on one platform or on all, and says
// of how many: its next snapshot is delivered whatever it is.
func (s *Store) Forget(platform *string, tenant string) (int, error) {
	r := s.do(&op{act: func(tx *bbolt.Tx, o *op) error {
		var found []*memory
		c := tx.Bucket(laneBucket).Cursor()
		prefix := record.TenantKey(tenant)
		for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if m, err := decodeMemory(v); err == nil && m.Digest != "" && (platform == nil || m.Lane.Platform == *platform) {
				found = append(found, m)
			}
		}
		o.result.count = len(found)
		for _, m := range found {
			// Which is a lane's newest must be known also when it is not compared with.
			if err := m.emptied().write(tx); err != nil {
				return err
			}
		}
		return nil
	}})
	return r.count, r.err
}
