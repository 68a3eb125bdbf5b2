package inbox

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
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

// An op is something that the writer does. A transaction may run again, on fresh lanes, so it keeps nothing of a run.
type op struct {
	lanes     []webhookgate.LaneName // to lock
	makes     bool                   // those that are new are made
	optional  bool                   // some may not exist
	lease     *lane.Lease            // it ends this one: what waits behind its webhook is read, too
	snapshots bool                   // the last snapshots of the lanes are read
	hooks     []int64                // webhooks to read, with their contents
	digests   [][]byte               // of bodies: invalid webhooks that have them are read
	numbered  bool                   // it must know its new numbers when it decides, and not only when that is written
	size      int64                  // about how many bytes it writes

	wanted func() bool       // false: nobody waits for it any more; nil: always
	run    func(*turn) error // decides. If it returns an error it has changed nothing
	done   func(error)       // is called once, when that is committed or has failed
	began  time.Time
	waited bool // somebody else had locked one of its lanes
}

// A batch has at most this many operations, and bytes.
const (
	maxBatch      = 256
	maxBatchBytes = 8 << 20
)

// lockPatience is how long an operation waits for a lane that somebody else has locked.
const lockPatience = 3 * time.Second

var (
	// ErrClosed says that the inbox has been closed.
	ErrClosed = errors.New("the inbox is closed")

	errLocked     = errors.New("somebody else has locked the tenant's row in the inbox's database for long")
	errUnreadable = errors.New("the tenant's row in the inbox is damaged: restore a backup")
	errNotInTime  = errors.New("the inbox did not confirm the webhook in time")
)

// submit hands an operation to the writer. It blocks while the writer's queue is full.
func (s *Inbox) submit(ctx context.Context, o *op) error {
	o.began = time.Now()
	select {
	case s.ops <- o:
		return nil
	case <-s.run.Done():
		return ErrClosed
	case <-ctx.Done():
		if s.run.Err() != nil {
			return ErrClosed
		}
		return ctx.Err()
	}
}

// do hands something to the writer, and returns what run has returned once that is committed. When ctx ends first it is not
// done later; it may be done if it was decided on already, and its commit is under way.
func do[T any](ctx context.Context, s *Inbox, o op, run func(*turn) (T, error)) (result T, err error) {
	type reply struct {
		result T
		err    error
	}
	var gaveUp atomic.Bool
	var last T
	replies := make(chan reply, 1)
	o.wanted = func() bool { return !gaveUp.Load() }
	o.run = func(t *turn) (err error) {
		// Its lanes are locked until the transaction ends. So if a sender gives up from here on, and sends a newer webhook
		// through another replica, the newer one comes after this one. If the sender gave up before, a newer one may
		// already be in the lane, and this one must not come after it.
		if gaveUp.Load() {
			return context.Canceled
		}
		last, err = run(t)
		return err
	}
	o.done = func(err error) { replies <- reply{last, err} }
	if err := s.submit(ctx, &o); err != nil {
		return result, err
	}
	select {
	case r := <-replies:
		return r.result, r.err
	case <-ctx.Done():
		if gaveUp.Store(true); s.run.Err() == nil {
			return result, ctx.Err()
		}
		<-s.closed // it may still have been written
	case <-s.closed:
	}
	select {
	case r := <-replies:
		return r.result, r.err
	default:
		return result, ErrClosed
	}
}

// runWriter runs one transaction after the other until the inbox is closed.
func (s *Inbox) runWriter() {
	defer close(s.closed)
	s.checkDatabase()
	close(s.opened)
	backoff := time.Duration(0)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var later []*op // somebody else had locked their lanes
	for {
		ops := later
		select {
		case o := <-s.ops:
			ops = s.gather(append(ops, o))
		case <-s.claimNow:
			ops = s.gather(ops)
		case <-s.gateIsUp:
			s.beatIfDue()
			continue
		case <-tick.C:
			s.everySecond()
			continue
		case <-s.run.Done():
			s.drain(later)
			return
		}
		var err error
		if later, err = s.commit(ops); err == nil {
			backoff = 0
			s.sweepIfDue()
			if len(later) > 0 {
				time.AfterFunc(2*time.Millisecond, s.wakeWriter)
			}
			continue
		}
		// In an outage operations fail at once, and their callers submit them again: this must not spin.
		backoff = min(max(2*backoff, 10*time.Millisecond), time.Second)
		select {
		case <-time.After(backoff):
		case <-s.run.Done():
		}
	}
}

// wakeWriter has the writer look for lanes to claim, and for operations that wait for a lock.
func (s *Inbox) wakeWriter() {
	select {
	case s.claimNow <- struct{}{}:
	default:
	}
}

// everySecond looks whether the database can be reached, if nothing else shows it, and does what is due.
func (s *Inbox) everySecond() {
	if s.idle || s.health.lastErr() != nil || s.mayCorrectTimes() {
		s.checkDatabase()
	}
	s.idle = true
	if s.health.lastErr() == nil && !s.cfg.ReadOnly {
		s.engine.Maintain()
		s.sweepIfDue()
	}
	s.beatIfDue()
}

// gather returns the operations for one transaction: these, and those that wait in the queue.
func (s *Inbox) gather(ops []*op) []*op {
	size := int64(0)
	for _, o := range ops {
		size += o.size
	}
	for len(ops) < maxBatch && size < maxBatchBytes {
		select {
		case o := <-s.ops:
			ops, size = append(ops, o), size+o.size
		default:
			return ops
		}
	}
	return ops
}

// drain writes what was submitted before the inbox was closed.
func (s *Inbox) drain(ops []*op) {
	for ops = s.gather(ops); len(ops) > 0; ops = s.gather(ops) {
		if s.health.lastErr() == nil {
			ops, _ = s.commit(ops)
		}
		for _, o := range ops {
			o.done(ErrClosed)
		}
		ops = nil
	}
	if s.beat(false); s.missedInMemory().Webhooks > 0 {
		s.cfg.Log.Error("the inbox cannot be written: after a restart usher does not know that webhooks got a 5xx")
	}
}

// commit runs a transaction for operations, and returns those that have to wait for a lane. It returns an error if the
// database failed.
func (s *Inbox) commit(ops []*op) (later []*op, err error) {
	ops = slices.DeleteFunc(ops, func(o *op) bool {
		unwanted := o.wanted != nil && !o.wanted()
		late := time.Since(o.began) > lockPatience && o.waited
		if late && !unwanted {
			o.done(errLocked)
		}
		return unwanted || late
	})
	claims := s.courier.plan(ops)
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
	t.end(ops)
	return t.later, nil
}

// commitParts runs the operations of a batch that the database has refused: in halves, and one alone not again.
func (s *Inbox) commitParts(ops []*op, refused error) (later []*op, err error) {
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
			t.end(half)
			later = append(later, t.later...)
		}
	}
	return later, err
}

// transact runs one transaction.
func (s *Inbox) transact(ops []*op, claims []*claim) (t *turn, err error) {
	write := s.write
	if s.cfg.ReadOnly {
		write = s.engine.Write // what a person may not do here says nothing about the inbox
	}
	// After ErrDoubt the senders get 503 and send again. If the transaction was committed after all, that is a
	// duplicate: the server keeps these lanes locked until it has ended the transaction. Entitlements go on as
	// before: no sender has a 200 for it.
	return t, write(func(tx engine.Tx) error {
		t = s.newTurn(tx)
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
