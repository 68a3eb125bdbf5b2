package inbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"go.etcd.io/bbolt"

	"usher/webhookgate"
)

// What boltStore does within a transaction: records, and what lanes remember.

// laneTail is a lane's tail and how it stands: the lane's memory.
type laneTail struct {
	tail
	state State
	at    time.Time // when it came into that state
}

// apply does one piece of work.
func (s *boltStore) apply(tx *bbolt.Tx, o *op) error {
	switch {
	case o.webhook != nil:
		return s.append(tx, o)
	case o.record != nil:
		return s.settle(tx, o)
	case o.forget != "":
		return s.forget(tx, o)
	}
	return nil
}

func (s *boltStore) append(tx *bbolt.Tx, o *op) error {
	w := o.webhook
	t := s.tailOf(tx, w.Lane)
	if t != nil && s.holds(t, w) {
		o.result.duplicateOf = t.Webhook
		return nil
	}
	records := tx.Bucket(recordBucket)
	id, err := records.NextSequence()
	if err != nil {
		return err
	}
	var previous uint64
	if t != nil {
		previous = t.ID
	}
	records.FillPercent = 0.9 // ids only grow
	if err := records.Put(idKey(id), encodeRecord(w, previous)); err != nil {
		return err
	}
	o.result.deliver = &record{id: id, webhook: w, status: Status{State: Waiting, Changed: w.Received}}
	return s.setTail(tx, w.Lane, &laneTail{tail: tailFor(w, id), state: Waiting, at: w.Received})
}

// holds says whether t is exactly w, and the receiver has it or will get it as its
// lane's last: while t waits the window does not apply.
func (s *boltStore) holds(t *laneTail, w *webhookgate.Webhook) bool {
	if s.window <= 0 || !w.Snapshot || !t.Snapshot || !bytes.Equal(t.Digest, w.Digest[:]) {
		return false
	}
	return stillHeld(t.state, t.at, s.window)
}

// stillHeld says of a lane's tail, by how it stands and since when, whether the
// receiver holds it or will get it.
func stillHeld(state State, since time.Time, window time.Duration) bool {
	return state == Waiting || state == Delivered && elapsed(since) < window
}

// elapsed is by the clock that went further: one stands still while a machine
// sleeps, the other can be set back.
func elapsed(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}

// tailOf returns a lane's tail; nil when it has none, or what it has can't be read.
func (s *boltStore) tailOf(tx *bbolt.Tx, lane webhookgate.Lane) *laneTail {
	if t, ok := s.tails.Get(lane); ok {
		return t
	}
	b := tx.Bucket(laneBucket).Get(laneKey(lane))
	if b == nil {
		return nil
	}
	last, err := decodeTail(b)
	if err != nil {
		s.log.Error("damaged memory of a lane, not used", "platform", lane.Platform, "tenant", lane.Tenant)
		return nil
	}
	// Of a record that is gone, or damaged and so will not be delivered, nothing is a
	// copy: nothing is dropped on a guess.
	t := &laneTail{tail: last}
	if record := tx.Bucket(recordBucket).Get(idKey(t.ID)); record != nil {
		r := readRecord(t.ID, record, tx.Bucket(statusBucket).Get(idKey(t.ID)))
		t.state, t.at = r.status.State, r.status.Changed
	}
	s.tails.Add(lane, t)
	return t
}

func (s *boltStore) setTail(tx *bbolt.Tx, lane webhookgate.Lane, t *laneTail) error {
	b, err := json.Marshal(t.tail)
	if err != nil {
		return err
	}
	s.tails.Add(lane, t)
	return tx.Bucket(laneBucket).Put(laneKey(lane), seal(b))
}

// settle writes how a record stands now.
func (s *boltStore) settle(tx *bbolt.Tx, o *op) error {
	r := o.record
	if o.again {
		if err := s.setAgain(tx, o); err != nil || o.result.err != nil {
			return err
		}
	}
	b, err := encodeStatus(&r.status)
	if err != nil {
		return err
	}
	status := tx.Bucket(statusBucket)
	was := status.Get(idKey(r.id))
	s.history.changed(tx, r.id, was, b)
	status.FillPercent = 0.9
	if err := status.Put(idKey(r.id), b); err != nil {
		return err
	}
	if t, ok := s.tails.Get(r.webhook.Lane); ok && t.ID == r.id {
		c := *t
		c.state, c.at = r.status.State, r.status.Changed
		s.tails.Add(r.webhook.Lane, &c)
	}
	return nil
}

// setAgain makes a record that is delivered once more its lane's tail, as the last
// that the receiver will get; unless something else waits there, or what does is not
// known. Then which comes last is a race between the courier and this store's
// knowledge, so the lane's memory is emptied: nothing is dropped on a guess.
func (s *boltStore) setAgain(tx *bbolt.Tx, o *op) error {
	r, w := o.record, o.record.webhook
	t := s.tailOf(tx, w.Lane)
	if t != nil && t.ID > r.id && !o.force {
		o.result.err = errOvertaken
		return nil
	}
	o.result.deliver = r
	if t != nil && t.state == Waiting && t.ID != r.id {
		return s.setTail(tx, w.Lane, t.emptied())
	}
	next := &laneTail{tail: tailFor(w, r.id), state: Waiting, at: r.status.Changed}
	if t == nil {
		next = next.emptied()
	}
	return s.setTail(tx, w.Lane, next)
}

// errOvertaken says that something newer has come into the lane.
var errOvertaken = errors.New("a newer webhook of this tenant has come")

// emptied is t as a place in the lane that is no copy of anything.
func (t *laneTail) emptied() *laneTail {
	c := *t
	c.Snapshot = false
	return &c
}

// forget empties memories. The tails stay: which record is a lane's last must be
// known also when it is not to be compared with.
func (s *boltStore) forget(tx *bbolt.Tx, o *op) error {
	var found []webhookgate.Lane
	err := tx.Bucket(laneBucket).ForEach(func(_, v []byte) error {
		if t, err := decodeTail(v); err == nil && t.Lane.Tenant == o.forget {
			found = append(found, t.Lane)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, lane := range found {
		t := s.tailOf(tx, lane)
		if t == nil || !t.Snapshot {
			continue
		}
		o.result.forgotten++
		if err := s.setTail(tx, lane, t.emptied()); err != nil {
			return err
		}
	}
	return nil
}
