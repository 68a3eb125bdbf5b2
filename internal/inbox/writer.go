package inbox

import (
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
)

// The writer is one goroutine of each process, and all that is written goes through it. It gathers the operations that
// have arrived, and runs one transaction for all of them, in two round trips:
//
//	1  lock their lanes and read them, with what else they name; claim lanes to deliver    turn.load
//	   each operation decides, in plain Go; then free places get leases                    turn.decide, turn.lease
//	2  take numbers, write, COMMIT                                                         turn.save
//
// Nobody waits for a lane that another process has locked: what needs it comes with the next transaction. If the
// database refuses what a batch writes, its halves run alone, until only the operation that is to blame fails.

// A writer runs transactions.
type writer struct {
	*queue
	figures *figures
	courier *courier
	feed    *feed
	owner   []byte // a random id of this process, for the lanes that it has leased

	sweepSoon        bool // there may be finished webhooks to delete
	sweepInvalidSoon bool // there may be invalid webhooks to delete
}

func newWriter(q *queue, f *figures, c *courier, d *feed) *writer {
	w := &writer{queue: q, figures: f, courier: c, feed: d, owner: make([]byte, 16)}
	rand.Read(w.owner)
	return w
}

// lockPatience is how long an operation waits for a lane that somebody else has locked.
const lockPatience = 3 * time.Second

// commit runs a transaction for operations, and returns those that have to wait for a lane. It returns an error if the
// database failed.
func (s *writer) commit(ops []*op) (later []*op, err error) {
	ops = slices.DeleteFunc(ops, func(o *op) bool {
		unwanted := o.wanted != nil && !o.wanted()
		late := time.Since(o.began) > lockPatience && o.waited
		if late && !unwanted {
			o.done(errLocked)
		}
		return unwanted || late
	})
	var ending []*lane.Lease
	for _, o := range ops {
		if o.lease != nil {
			ending = append(ending, o.lease)
		}
	}
	claims := s.courier.plan(ending)
	if len(ops)+len(claims) == 0 {
		return nil, nil
	}
	t, err := s.transact(ops, claims)
	if errors.As(err, new(*engine.StatementError)) {
		s.courier.refused(claims)
		return s.commitParts(ops, err)
	}
	if err != nil {
		for _, o := range ops {
			o.done(err)
		}
		return nil, err
	}
	s.end(t, ops)
	return t.later, nil
}

// commitParts runs the operations of a batch that the database has refused: in halves, and one alone not again.
func (s *writer) commitParts(ops []*op, refused error) (later []*op, err error) {
	if len(ops) < 2 {
		s.cfg.Log.Error("the database refuses what usher wants to write", "err", refused)
		for _, o := range ops {
			o.done(refused)
		}
		return nil, nil
	}
	for _, half := range [][]*op{slices.Clone(ops[:len(ops)/2]), ops[len(ops)/2:]} {
		t, failed := s.transact(half, nil)
		switch {
		case errors.As(failed, new(*engine.StatementError)):
			waits, failed := s.commitParts(half, failed)
			later, err = append(later, waits...), errors.Join(err, failed)
		case failed != nil:
			for _, o := range half {
				o.done(failed)
			}
			err = errors.Join(err, failed)
		default:
			s.end(t, half)
			later = append(later, t.later...)
		}
	}
	return later, err
}

// transact runs one transaction.
func (s *writer) transact(ops []*op, claims []*claim) (t *turn, err error) {
	write := s.write
	if s.cfg.ReadOnly {
		write = s.engine.Write // what a person may not do here says nothing about the inbox
	}
	// After ErrDoubt the senders get 503 and send again. If the transaction was committed after all, that is a
	// duplicate: the server keeps these lanes locked until it has ended the transaction. Entitlements go on as
	// before: no sender has a 200 for it.
	return t, write(func(tx engine.Tx) error {
		t = newTurn(s.figures, s.courier.places, s.owner, tx)
		if err := t.load(ops, claims); err != nil {
			return err
		}
		if err := t.decide(ops); err != nil {
			return err
		}
		t.lease()
		t.save()
		return nil
	})
}

// end is called when the transaction is committed.
func (s *writer) end(t *turn, ops []*op) {
	for _, w := range t.added {
		w.ID, w.Rank = t.number(w.ID), t.number(w.Rank)
	}
	s.figures.countChange(t.person, t.counts, t.firstUsed, t.AddedBytes)
	s.sweepSoon = s.sweepSoon || t.HasFinished
	s.sweepInvalidSoon = s.sweepInvalidSoon || t.HasInvalid
	if t.taken {
		s.feed.committed()
	}
	for _, do := range t.then {
		do()
	}
	s.courier.begin(s.courier.take(&t.dealt))
	for _, o := range t.later {
		o.waited = true
	}
	for _, o := range ops {
		if !slices.Contains(t.later, o) {
			o.done(t.failed[o])
		}
	}
}
