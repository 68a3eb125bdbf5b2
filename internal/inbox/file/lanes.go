package file

import (
	"bytes"
	"errors"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// memory is what a lane knows: its newest, its last snapshot, and what its receiver was given
// last, or will be. How that one stands is only right here once its record is gone from the
// history; see stands.
type memory struct {
	Lane     webhookgate.Lane
	Newest   uint64    // the id that came last
	Received time.Time // when
	Snapshot uint64    // the id of the last snapshot that came, see query.go; zero: none has
	Seen     string    // its digest

	ID       uint64
	Webhook  string
	Digest   string // empty: no copy can be told
	State    record.State
	Changed  time.Time
	Receiver string
}

// emptied is m, but no copy of anything can be told.
func (m *memory) emptied() *memory {
	c := *m
	c.Digest = ""
	return &c
}

// last is m with r as what the receiver is given last.
func (m *memory) last(r *record.Record) *memory {
	c, w := *m, r.Webhook
	c.Lane, c.ID, c.Webhook, c.Digest = w.Lane, r.ID, w.ID, ""
	if w.Snapshot {
		c.Digest = string(w.Digest[:])
	}
	c.State, c.Changed, c.Receiver = r.Status.State, r.Status.Changed, r.Status.Receiver
	return &c
}

// stands finds out how what the receiver was given last stands. Of a record that is damaged, or
// gone without a word, nothing is a copy: nothing is dropped on a guess.
func (m *memory) stands(tx *bbolt.Tx) {
	if value, status := get(tx, m.ID); value != nil {
		r := read(m.ID, value, status, false).Status
		m.State, m.Changed, m.Receiver = r.State, r.Changed, r.Receiver
	} else if m.State == record.Waiting {
		m.State = ""
	}
}

// holds says whether m is exactly what comes, and its receiver has it or will get it as
// the lane's last: while it waits neither the window applies nor who the receiver is.
func (s *Store) holds(tx *bbolt.Tx, m *memory, o *op) bool {
	w := o.webhook
	if s.cfg.DedupWindow <= 0 || !w.Snapshot || m.Digest != string(w.Digest[:]) {
		return false
	}
	receiver := ""
	if !o.kept {
		receiver = s.courier.ReceiverOf(w.Lane)
	}
	m.stands(tx)
	return record.Held(m.State, m.Changed, s.cfg.DedupWindow) && (m.State == record.Waiting || m.Receiver == receiver)
}

// isSnapshot says whether m is also the lane's last snapshot. Where that one is damaged it is not: a
// copy makes it whole again.
func (m *memory) isSnapshot(tx *bbolt.Tx) bool {
	if m.Seen != m.Digest {
		return false
	}
	_, err := record.Unseal(m.snapshot(tx))
	return err == nil
}

func (s *Store) append(tx *bbolt.Tx, o *op) error {
	w, records := o.webhook, tx.Bucket(recordBucket)
	m, err := s.memory(tx, w.Lane)
	if err != nil {
		return err
	}
	copied := s.holds(tx, m, o)
	if copied {
		o.result.duplicateOf = m.Webhook
		if m.isSnapshot(tx) {
			return nil
		}
	}
	value := record.Encode(w, m.ID)
	if !o.kept && !copied && s.isFull(int64(len(value))) {
		o.result.err = record.ErrFull
		return nil
	}
	id, err := nextID(tx)
	if err != nil {
		return err
	}
	if copied { // something else came since, and its receiver was sent this again by hand
		return errors.Join(s.keepSnapshot(tx, id, w), s.see(tx, m, id, o))
	}
	records.FillPercent = 0.9 // ids only grow
	if err := records.Put(record.IDKey(id), value); err != nil {
		return err
	}
	r := &record.Record{ID: id, Webhook: w, Status: record.Status{State: record.Waiting, Changed: w.Received}}
	s.used.Add(int64(len(value)))
	if o.kept {
		r.Status.State = record.Kept
		err = s.settle(tx, r)
	} else {
		o.result.deliver = r
		err = tx.Bucket(statusBucket).Put(record.IDKey(id), record.Fresh())
	}
	return errors.Join(err, s.see(tx, m.last(r), id, o))
}

// see remembers m, and what came as its lane's newest, and as its snapshot if it is one.
func (s *Store) see(tx *bbolt.Tx, m *memory, id uint64, o *op) error {
	w, next := o.webhook, *m
	next.Newest, next.Received = id, w.Received
	if w.Snapshot {
		next.Snapshot, next.Seen = id, string(w.Digest[:])
		o.result.snapshot = id
	}
	return next.write(tx)
}

// nextID is above all ids that are in the file. Those of bbolt's sequence are, unless a bit of it is
// damaged: then they would take the place of what is there.
func nextID(tx *bbolt.Tx) (uint64, error) {
	records := tx.Bucket(recordBucket)
	last, _ := records.Cursor().Last()
	other, _ := tx.Bucket(statusBucket).Cursor().Last()
	if most := max(record.KeyID(last), record.KeyID(other)); most > records.Sequence() {
		if err := records.SetSequence(most); err != nil {
			return 0, err
		}
	}
	return records.NextSequence()
}

// isFull says whether there is no room for size more bytes that wait, and the log when
// that begins.
func (s *Store) isFull(size int64) bool {
	was := s.full
	s.full = s.cfg.MaxBytes > 0 && s.used.Load()+size > s.cfg.MaxBytes
	if s.full && !was {
		s.cfg.Log.Error("inbox full: webhooks are refused until some are delivered or discarded",
			"used_bytes", s.used.Load(), "max_bytes", s.cfg.MaxBytes)
	}
	return s.full
}

// memory returns what a lane knows. Where that was damaged it is written anew: to read all records for
// each one that the history drops would keep senders waiting.
func (s *Store) memory(tx *bbolt.Tx, lane webhookgate.Lane) (*memory, error) {
	m, damaged := recall(tx, lane)
	if damaged == nil {
		return m, nil
	}
	s.tellDamaged(lane)
	return m, m.write(tx)
}

func (s *Store) tellDamaged(lane webhookgate.Lane) {
	s.cfg.Log.Error("what usher remembers of a tenant is damaged, ignoring it", "platform", lane.Platform, "tenant", lane.Tenant)
}

// recall reads what a lane knows, an empty memory if that is nothing. Where it is damaged, the error
// says so, and the memory is built anew.
func recall(tx *bbolt.Tx, lane webhookgate.Lane) (m *memory, err error) {
	key := record.LaneKey(lane)
	if b := tx.Bucket(laneBucket).Get(key); b == nil {
		m = new(memory)
	} else {
		m, err = readMemory(tx, key, b)
	}
	m.Lane = lane
	return m, err
}

// readMemory reads a memory in the same way.
func readMemory(tx *bbolt.Tx, key, value []byte) (*memory, error) {
	m, err := decodeMemory(value)
	if err != nil {
		m = rebuild(tx, key)
	}
	return m, err
}

// rebuild makes the memory of a lane of its records. It tells no copy, but which is the newest, and the
// snapshot. A record that is damaged, too, may be of any lane. The copy beside the records may be newer
// than some of them.
func rebuild(tx *bbolt.Tx, key []byte) *memory {
	m := new(memory)
	find := func(k, value []byte) error {
		id := record.KeyID(k)
		switch w, damaged := record.DecodeSlim(value); {
		case id < m.Newest:
		case damaged != nil:
			m.Newest, m.Snapshot = id, id
		case bytes.Equal(record.LaneKey(w.Lane), key):
			m.Lane, m.Newest, m.Received = w.Lane, id, w.Received
			if w.Snapshot {
				m.Snapshot = id
			}
		}
		return nil
	}
	if kept := tx.Bucket(snapshotBucket).Get(key); len(kept) > 8 {
		_ = find(kept[:8], kept[8:])
	}
	_ = tx.Bucket(recordBucket).ForEach(find) // which never fails
	return m
}

// values are all that a memory says, in the order in which it is written.
func (m *memory) values() []any {
	return []any{
		&m.Newest, &m.Snapshot, &m.ID, &m.Received, &m.Changed, &m.Lane.Platform, &m.Lane.Tenant, &m.Lane.Type,
		&m.Seen, &m.Webhook, &m.Digest, (*string)(&m.State), &m.Receiver,
	}
}

func (m *memory) write(tx *bbolt.Tx) error {
	return tx.Bucket(laneBucket).Put(record.LaneKey(m.Lane), record.Pack(m.values()...))
}

func decodeMemory(b []byte) (*memory, error) {
	m := new(memory)
	return m, record.Unpack(b, m.values()...)
}

// settle writes how a record stands now.
func (s *Store) settle(tx *bbolt.Tx, r *record.Record) error {
	b, err := record.EncodeStatus(&r.Status)
	if err != nil {
		return err
	}
	status, key := tx.Bucket(statusBucket), record.IDKey(r.ID)
	size := int64(len(tx.Bucket(recordBucket).Get(key)))
	switch was := record.Finished(status.Get(key)); {
	case r.Status.State.Finished() && !was:
		s.used.Add(-size)
		s.history.add(size)
	case !r.Status.State.Finished() && was:
		s.used.Add(size)
		s.history.remove(size)
	}
	status.FillPercent = 0.9
	return status.Put(key, b)
}
