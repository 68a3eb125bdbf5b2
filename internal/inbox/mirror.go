package inbox

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"usher/webhookgate"
)

// mirror is what the log says, as far as this replica has read it.
type mirror struct {
	window time.Duration
	log    *slog.Logger
	stir   chan struct{} // something has changed for whoever waits for the lease

	mu       sync.Mutex // guards what follows
	applied  uint64     // sequence of the last message that is in here
	heard    time.Time  // when that was
	caughtUp bool       // all was read at least once
	moved    chan struct{}
	records  map[uint64]*mirrored
	order    []*mirrored // the same, by id
	lanes    map[string]*mirrorLane
	copies   []copied // by sequence
	lease    leaseSeen
	pending  int
	parked   int
	finished int       // records that are only kept to be looked at
	bytes    int64     // of those
	looked   time.Time // for what has become too old
	dropped  []uint64  // by the last trim, and perhaps still in the log

	// deliver is the courier's take, while this replica delivers.
	deliver func(r *record, again bool)
}

// mirrored is a record without its content.
type mirrored struct {
	record
	token string    // of its lane
	seen  time.Time // when it was read from the log
	size  int64
	noted uint64 // sequence of the message that says how it stands; 0: it waits
}

func newMirror(window time.Duration, log *slog.Logger) *mirror {
	return &mirror{
		window: window, log: log, stir: make(chan struct{}, 1), heard: time.Now(), looked: time.Now(),
		records: make(map[uint64]*mirrored), lanes: make(map[string]*mirrorLane),
	}
}

func (m *mirror) poke() {
	select {
	case m.stir <- struct{}{}:
	default:
	}
}

// heardAt says when something was last read from the log, and whether all was.
func (m *mirror) heardAt() (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard, m.caughtUp
}

// await returns when the mirror holds the message of that sequence.
func (m *mirror) await(ctx context.Context, seq uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.applied < seq {
		if m.moved == nil {
			m.moved = make(chan struct{})
		}
		moved := m.moved
		m.mu.Unlock()
		select {
		case <-moved:
			m.mu.Lock()
		case <-ctx.Done():
			m.mu.Lock()
			return ctx.Err()
		}
	}
	m.caughtUp = true
	return nil
}

// begin says where to read on.
func (m *mirror) begin() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied + 1
}

// advance notes that the message of that sequence is in. m.mu is held.
func (m *mirror) advance(seq uint64) {
	m.applied, m.heard = seq, time.Now()
	if m.moved != nil {
		close(m.moved)
		m.moved = nil
	}
}

// appended takes in a webhook.
func (m *mirror) appended(seq uint64, token string, data []byte, deflated bool) {
	whole, _, err := unpackRecord(data, deflated)
	status := Status{State: Waiting}
	if err != nil {
		m.log.Error("webhook damaged, parked", "id", seq)
		whole, status.State, status.Why = new(webhookgate.Webhook), Parked, ErrDamaged.Error()
	}
	status.Changed = whole.Received
	r := &mirrored{
		record: record{id: seq, webhook: slim(whole), status: status},
		token:  token,
		seen:   time.Now(),
		size:   int64(len(data)),
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.records[seq] = r
	m.order = append(m.order, r)
	l := m.lane(token)
	l.records++
	l.extend(tailFor(whole, seq)) // it may have been from here, and another one after it
	m.count(r, 1)
	if m.deliver != nil && status.State == Waiting {
		m.deliver(&record{id: seq, webhook: whole, status: status}, false)
	}
	m.advance(seq)
}

// noted takes in how a record stands.
func (m *mirror) noted(seq, id uint64, data []byte) {
	status, err := decodeStatus(data)
	if err != nil {
		m.log.Error("status damaged, its webhook is parked", "id", id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.advance(seq)
	r := m.records[id]
	if r == nil {
		return // it was deleted, and this is what is left of it
	}
	if err != nil {
		status = r.status
		status.State, status.Why = Parked, ErrDamaged.Error()
	}
	again := status.State == Waiting && status.Again.After(r.status.Again)
	m.count(r, -1)
	r.status, r.noted = status, max(r.noted, seq)
	m.count(r, 1)
	if again && m.deliver != nil {
		c := r.record
		m.deliver(&c, true)
	}
}

// setNoted notes the sequence of what was said of a record last, before it is read from
// the log.
func (m *mirror) setNoted(id, seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[id]; r != nil {
		r.noted = max(r.noted, seq)
	}
}

// replaceNoted puts right which message says how a record stands, if that is still was.
func (m *mirror) replaceNoted(id, was, seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[id]; r != nil && r.noted == was {
		r.noted = seq
	}
}

// leased takes in who delivers.
func (m *mirror) leased(seq uint64, l leaseSeen) {
	m.mu.Lock()
	changed := l.Holder != m.lease.Holder
	l.seq, l.seen = seq, time.Now()
	m.lease = l
	m.advance(seq)
	m.mu.Unlock()
	if changed {
		m.poke()
	}
}

// leaseNow returns the lease as it was read last, and whether all was read.
func (m *mirror) leaseNow() (_ leaseSeen, caughtUp bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease, m.caughtUp
}

// replaceLease puts right which message is the lease's last, if that is still was. Who
// holds it stays as it is known.
func (m *mirror) replaceLease(was, seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lease.seq == was {
		m.lease.seq = seq
	}
}

// passed takes in a message that says nothing.
func (m *mirror) passed(seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(seq)
}

// count adds a record to the figures, or takes it out. m.mu is held.
func (m *mirror) count(r *mirrored, by int) {
	switch r.status.State {
	case Waiting:
		m.pending += by
	case Parked:
		m.parked += by
	default:
		m.finished += by
		m.bytes += int64(by) * r.size
	}
}

// attach hands to c all that is unfinished, and from then on what comes.
func (m *mirror) attach(c *courier) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.restore(m.unfinished())
	m.deliver = c.take
}

func (m *mirror) detach() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deliver = nil
}

// unfinished returns the records that wait or are parked. m.mu is held.
func (m *mirror) unfinished() (out []*record) {
	for _, r := range m.order {
		if r.status.State == Waiting || r.status.State == Parked {
			c := r.record
			out = append(out, &c)
		}
	}
	return out
}

// find returns a record as it stands; ok is false when it is not there.
func (m *mirror) find(id uint64) (_ mirrored, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[id]
	if r == nil {
		return mirrored{}, false
	}
	return *r, true
}
