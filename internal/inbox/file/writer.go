package file

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
)

const (
	// settleDelay is how long notes may wait for company. A webhook that comes in does
	// not wait, and takes them along.
	settleDelay = 20 * time.Millisecond
	// pace is the least time between two transactions while several senders wait for each.
	// Without it, on a fast disk hardly any webhooks would share one. A sender that is alone
	// never waits.
	pace = 3 * time.Millisecond
)

// write is the writer: it gathers the queued work, commits it, and tells those who wait.
func (s *Store) write() {
	defer close(s.closed)
	for stop := false; !stop; {
		s.batch = s.gather()
		err := s.Err()
		if err == nil {
			err = s.commit()
		}
		for _, o := range s.batch {
			stop = stop || o.stop
			s.conclude(o, err)
		}
	}
}

// conclude tells whom it concerns what came of a piece of work.
func (s *Store) conclude(o *op, err error) {
	if err != nil {
		o.result = result{err: err}
	}
	if r := &o.result; r.snapshot != 0 && s.cfg.OnSnapshot != nil {
		s.cfg.OnSnapshot(o.webhook.Lane, r.snapshot, nil)
	}
	if r := &o.result; r.upTo != 0 && s.cfg.OnErase != nil {
		s.cfg.OnErase(r.erased, r.upTo)
	}
	if r := &o.result; r.deliver != nil {
		s.courier.Take(s.term, r.deliver, r.deliver.Webhook, r.again)
	}
	if o.done != nil {
		close(o.done)
	}
}

// gather returns the next batch: what is there, and if nobody waits for that, what
// comes within the delay. It is empty when the history has something too old, and nothing comes.
func (s *Store) gather() []*op {
	var delay <-chan time.Time
	old := time.NewTimer(s.history.pause())
	defer old.Stop()
	for {
		s.mu.Lock()
		urgent, some := s.urgent, len(s.queue) > 0
		s.mu.Unlock()
		if urgent && s.company {
			time.Sleep(time.Until(s.began.Add(pace)))
		}
		if urgent {
			return s.take()
		}
		if some && delay == nil {
			delay = time.After(settleDelay)
		}
		select {
		case <-s.signal:
		case <-delay:
			return s.take()
		case <-old.C:
			return s.take()
		}
	}
}

// take empties the queue.
func (s *Store) take() []*op {
	s.mu.Lock()
	batch := s.queue
	s.queue, s.urgent = nil, false
	s.mu.Unlock()
	waiting := 0
	for _, o := range batch {
		if o.done != nil {
			waiting++
		}
	}
	s.company, s.began = waiting > 1, time.Now()
	return batch
}

// errNothing ends a transaction in which there is nothing to write, and so nothing to sync.
var errNothing = errors.New("nothing to write")

// commit writes the batch in one transaction. After a failure nothing is written any
// more: a sync that failed may have lost pages that a later one reports as safe.
func (s *Store) commit() error {
	err := s.guard(func() error { return s.update(s.writeBatch) })
	if errors.Is(err, errNothing) {
		return nil
	}
	s.syncs.Add(1)
	if err == nil {
		s.written()
		return nil
	}
	return s.fail(fmt.Errorf("the inbox can't be written: %w", err))
}

func (s *Store) writeBatch(tx *bbolt.Tx) error {
	for _, o := range s.batch {
		if err := s.apply(tx, o); err != nil {
			return err
		}
	}
	trimmed, err := s.trim(tx, time.Now())
	if err == nil && trimmed == 0 && !slices.ContainsFunc(s.batch, (*op).wrote) {
		return errNothing
	}
	return err
}

// fail has the store take nothing in any more, unless it does not already, and returns why.
func (s *Store) fail(err error, attrs ...any) error {
	err = fmt.Errorf("%w; usher takes no webhooks in until it is restarted", err)
	if s.broken.CompareAndSwap(nil, &err) {
		s.cfg.Log.Error("inbox broken", append(attrs, "err", err)...)
	}
	return s.Err()
}

// wrote says whether there is anything in the file of what was done: not of a copy of what is
// there, nor of what was refused.
func (o *op) wrote() bool {
	refused := o.result.err != nil
	copied := o.result.duplicateOf != "" && o.result.snapshot == 0
	return !o.stop && !refused && !copied
}

func (s *Store) apply(tx *bbolt.Tx, o *op) error {
	switch {
	case o.webhook != nil:
		return s.append(tx, o)
	case o.note != nil:
		return s.settle(tx, o.note)
	case o.act != nil:
		return o.act(tx, o)
	}
	return nil
}

// written takes the notes of the batch off the list of those that are not in the file.
func (s *Store) written() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.batch {
		if o.note != nil && s.unwritten[o.note.ID] == o {
			delete(s.unwritten, o.note.ID)
		}
	}
}

// void drops the notes of records that are not in the file yet: they stand otherwise by
// now, and the courier, who no longer has them, makes no more of those.
func (s *Store) void(is func(id uint64) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range [][]*op{s.batch, s.queue} {
		for _, o := range list {
			if o.note != nil && is(o.note.ID) {
				o.note = nil
			}
		}
	}
	for id := range s.unwritten {
		if is(id) {
			delete(s.unwritten, id)
		}
	}
}

// unwrittenNotes returns the last notes that are not in the file yet. A reader of the file asks for
// them first, so that it never shows an older state than is known.
func (s *Store) unwrittenNotes() map[uint64]record.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	notes := make(map[uint64]record.Status, len(s.unwritten))
	for id, o := range s.unwritten {
		notes[id] = o.note.Status
	}
	return notes
}
