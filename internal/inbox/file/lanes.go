package file

import (
	"bytes"
	"encoding/json"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// memory is what a lane knows: its newest, and what its receiver was given last, or will
// be, and how that stands. In the file the last three are only right once the record
// itself is gone from the history; until then its status is what counts.
type memory struct {
	Lane     webhookgate.Lane
	Newest   uint64    // the id that came last
	Received time.Time // when
	Seen     []byte    // digest of the last snapshot that came; see snapshots

	ID       uint64
	Webhook  string
	Snapshot bool // a copy can be told
	Digest   []byte
	State    record.State
	Changed  time.Time
	Receiver string
}

// saw says whether w is what the lane's snapshot says.
func (m *memory) saw(w *webhookgate.Webhook) bool { return bytes.Equal(m.Seen, w.Digest[:]) }

// emptied is m, but no copy of anything can be told.
func (m *memory) emptied() *memory {
	c := *m
	c.Snapshot = false
	return &c
}

// last is m with r as what the receiver is given last. The digest is a copy: a slice of
// the webhook's own would keep all of it in memory, its content included.
func (m *memory) last(r *record.Record) *memory {
	c, w := *m, r.Webhook
	c.Lane, c.ID, c.Webhook, c.Snapshot, c.Digest = w.Lane, r.ID, w.ID, w.Snapshot, bytes.Clone(w.Digest[:])
	c.stand(&r.Status)
	return &c
}

func (m *memory) stand(s *record.Status) {
	m.State, m.Changed, m.Receiver = s.State, s.Changed, s.Receiver
}

// holds says whether m is exactly what comes, and its receiver has it or will get it as
// the lane's last: while it waits neither the window applies nor who the receiver is.
func (s *Store) holds(m *memory, o *op) bool {
	w := o.webhook
	if s.cfg.DedupWindow <= 0 || !w.Snapshot || !m.Snapshot || !bytes.Equal(m.Digest, w.Digest[:]) {
		return false
	}
	receiver := ""
	if !o.kept {
		receiver = s.courier.ReceiverOf(w.Lane)
	}
	return record.Held(m.State, m.Changed, s.cfg.DedupWindow) && (m.State == record.Waiting || m.Receiver == receiver)
}

func (s *Store) append(tx *bbolt.Tx, o *op) error {
	w := o.webhook
	records, m := tx.Bucket(recordBucket), s.memory(tx, w.Lane)
	copied := s.holds(m, o)
	if copied {
		o.result.duplicateOf = m.Webhook
		if m.saw(w) {
			return nil
		}
	}
	value := record.Encode(w, m.ID)
	if !o.kept && !copied && s.isFull(int64(len(value))) {
		o.result.err = record.ErrFull
		return nil
	}
	id, err := records.NextSequence()
	if err != nil {
		return err
	}
	if copied { // something else came since, and its receiver was sent this again by hand
		return s.see(tx, m, id, o)
	}
	records.FillPercent = 0.9 // ids only grow
	if err := records.Put(record.IDKey(id), value); err != nil {
		return err
	}
	r := &record.Record{ID: id, Webhook: w, Status: record.Status{State: record.Waiting, Changed: w.Received}}
	s.used.Add(int64(len(value)))
	if o.kept {
		r.Status.State = record.Kept
		if err := s.settle(tx, r); err != nil {
			return err
		}
	} else {
		o.result.deliver = r
	}
	return s.see(tx, m.last(r), id, o)
}

// see remembers m, and what came as its lane's newest, and as its snapshot if it is one.
func (s *Store) see(tx *bbolt.Tx, m *memory, id uint64, o *op) error {
	w, next := o.webhook, *m
	next.Newest, next.Received = id, w.Received
	if w.Snapshot {
		next.Seen = bytes.Clone(w.Digest[:])
		o.result.snapshot = id
		if err := tx.Bucket(snapshotBucket).Put(record.LaneKey(w.Lane), encodeSnapshot(id, w)); err != nil {
			return err
		}
	}
	return s.remember(tx, &next)
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

// memory returns what a lane knows; an empty one where it knows nothing, or what it does
// can't be read.
func (s *Store) memory(tx *bbolt.Tx, lane webhookgate.Lane) *memory {
	if m, ok := s.memories.Get(lane); ok {
		return m
	}
	m := s.recall(tx, lane)
	s.memories.Add(lane, m)
	return m
}

// recall reads what a lane knows from the file.
func (s *Store) recall(tx *bbolt.Tx, lane webhookgate.Lane) *memory {
	b := tx.Bucket(laneBucket).Get(record.LaneKey(lane))
	if b == nil {
		return &memory{Lane: lane}
	}
	m, err := decodeMemory(b)
	if err != nil {
		s.cfg.Log.Error("what usher remembers of a tenant is damaged, ignoring it", "platform", lane.Platform, "tenant", lane.Tenant)
		return &memory{Lane: lane}
	}
	// Of a record that is damaged, or gone without a word, nothing is a copy: nothing
	// is dropped on a guess.
	if value, status := get(tx, m.ID); value != nil {
		m.stand(&read(m.ID, value, status, false).Status)
	} else if m.State == record.Waiting {
		m.State = ""
	}
	if _, err := record.Unseal(tx.Bucket(snapshotBucket).Get(record.LaneKey(lane))); err != nil {
		m.Seen = nil // a copy of it makes it whole again
	}
	return m
}

func decodeMemory(b []byte) (*memory, error) {
	b, err := record.Unseal(b)
	if err != nil {
		return nil, err
	}
	m := new(memory)
	if json.Unmarshal(b, m) != nil {
		return nil, record.ErrDamaged
	}
	return m, nil
}

func (s *Store) remember(tx *bbolt.Tx, m *memory) error {
	s.memories.Add(m.Lane, m)
	return m.write(tx)
}

func (m *memory) write(tx *bbolt.Tx) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return tx.Bucket(laneBucket).Put(record.LaneKey(m.Lane), record.Seal(b))
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
	if err := status.Put(key, b); err != nil {
		return err
	}
	if m, ok := s.memories.Get(r.Webhook.Lane); ok && m.ID == r.ID {
		c := *m
		c.stand(&r.Status)
		s.memories.Add(m.Lane, &c)
	}
	return nil
}
