package inbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// The writer is one goroutine of each process, and all that is written goes through it. It gathers the works that
// have arrived, and runs one transaction for all of them:
//
//	load           locks the lanes of all works in the order of their keys, and reads
//	decide         each work changes its lanes, and says what to do after the commit (Turn.Then)
//	save           queues what the lanes remember; the engine sends it together with the commit

// A work is something that the writer does. It keeps nothing of a run: a transaction may run again, on fresh lanes.
type work struct {
	lanes     []webhookgate.LaneName // to lock; those that are new are made
	known     []webhookgate.LaneName // to lock, if they exist
	claim     *claim                 // to find lanes for
	hooks     []int64                // webhooks to read, with their content
	digests   [][]byte               // invalid webhooks with these digests
	snapshots []webhookgate.LaneName // tenants whose last snapshot is read
	next      int64                  // its lane's first waiting webhook beside this one is read ahead, with its content
	numbers   int64                  // how many new webhooks there may be
	above     int64                  // their numbers are higher than this one
	bytes     int64                  // about how many it writes
	by        *Action                // the action that it is part of; nil: nobody asked for it

	wanted func() bool      // false: nobody waits for it any more; nil: always
	decide func(t *sqlTurn) // does it
	failed func(error)      // is called if the transaction is not committed
}

// A batch has at most this many works, and bytes.
const (
	maxBatchWorks = 256
	maxBatchBytes = 8 << 20
)

// submit hands a work to the writer. It blocks while the writer's queue is full.
func (s *Inbox) submit(o *work) {
	select {
	case s.works <- o:
	case <-s.run.Done():
		o.failed(ErrClosed)
	}
}

// do lets the writer do a piece of work, and returns what decide has returned, once that is committed. If ctx ends
// before there is room in the writer's queue, it is not done.
func do[T any](ctx context.Context, s *Inbox, w work, decide func(*sqlTurn) T) (T, error) {
	return await(ctx, nil, s, w, decide)
}

// attempt is like do, but returns when ctx ends. Then the work may be done nevertheless, if it was decided on before
// that.
func attempt[T any](ctx context.Context, s *Inbox, w work, decide func(*sqlTurn) T) (T, error) {
	return await(ctx, ctx.Done(), s, w, decide)
}

func await[T any](ctx context.Context, giveUp <-chan struct{}, s *Inbox, w work, decide func(*sqlTurn) T) (T, error) {
	type reply struct {
		result T
		err    error
	}
	var nothing T
	var gaveUp atomic.Bool
	replies := make(chan reply, 1)
	w.wanted = func() bool { return !gaveUp.Load() }
	w.failed = func(err error) { replies <- reply{err: err} }
	w.decide = func(t *sqlTurn) {
		// Its lanes are locked until the transaction ends. So if a sender gives up from here on, and sends a newer webhook
		// through another replica, the newer one waits for the lock and comes after this one. If the sender gave up
		// before, a newer one may already be in the lane, and this one must not come after it. (The lane was not locked
		// all the time if the transaction runs again.)
		if !gaveUp.Load() {
			result := decide(t)
			t.Then(func() { replies <- reply{result: result} })
		}
	}
	select {
	case s.works <- &w:
	case <-ctx.Done():
		return nothing, ctx.Err()
	case <-s.run.Done():
		return nothing, ErrClosed
	}
	select {
	case r := <-replies:
		return r.result, r.err
	case <-giveUp:
		gaveUp.Store(true)
		return nothing, ctx.Err()
	case <-s.closed: // the writer has ended; it may have replied before
	}
	select {
	case r := <-replies:
		return r.result, r.err
	default:
		return nothing, ErrClosed
	}
}

// ErrClosed says that the inbox has been closed.
var ErrClosed = errors.New("the inbox is closed")

// runWriter runs one transaction after the other until the inbox is closed.
func (s *Inbox) runWriter() {
	defer close(s.closed)
	s.checkDatabase()
	close(s.opened)
	backoff := time.Duration(0)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var works []*work
		select {
		case w := <-s.works:
			if s.mayCorrectTimes() {
				s.checkDatabase()
			}
			works = s.gather(w)
		case <-s.gateIsUp:
			s.beatIfDue()
			continue
		case <-tick.C:
			if s.idle || s.health.lastErr() != nil || s.mayCorrectTimes() {
				s.checkDatabase() // nothing else shows an outage, or its end
			}
			s.idle = true
			if s.health.lastErr() == nil && !s.cfg.ReadOnly {
				s.engine.Maintain()
				s.sweep()
			}
			s.beatIfDue()
			continue
		case <-s.run.Done():
			s.drain()
			if s.beat(false); s.missedInMemory().Webhooks > 0 {
				s.cfg.Log.Error("the inbox cannot be written: after a restart usher does not know that webhooks got a 5xx")
			}
			return
		}
		err := s.commit(works)
		if err == nil {
			backoff = 0
			if (s.sweepSoon.Load() || s.sweepInvalidSoon.Load()) && time.Now().After(s.nextSweep) {
				s.sweep()
			}
			continue
		}
		// In an outage works fail at once, and their callers submit them again: this must not spin.
		backoff = min(max(2*backoff, 10*time.Millisecond), time.Second)
		select {
		case <-time.After(backoff):
		case <-s.run.Done():
		}
	}
}

func (s *Inbox) beatIfDue() {
	if s.health.lastErr() == nil && !s.cfg.ReadOnly {
		s.beat(s.cfg.GateUp != nil && s.cfg.GateUp() && s.Err() == nil)
	}
}

// checkDatabase finds out whether the database can be reached. To open it, or after an outage, it also writes. Each
// minute, and when the database's clock has jumped, it corrects times that are further ahead than is possible: the
// clock was set back since.
func (s *Inbox) checkDatabase() {
	var raised, correct bool
	err := s.write(func(tx engine.Tx) error {
		var now int64
		tx.Now(&now)
		asked := time.Now()
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		s.observeClock(now, asked)
		if s.cfg.ReadOnly {
			return nil // it was read, which is enough
		}
		if correct = s.mayCorrectTimes(); correct {
			if err := s.correctTimes(tx, now); err != nil {
				return err
			}
		}
		if s.health.unproven() {
			tx.Queue("touch", nil)
		}
		raised = false
		if s.health.unproven() && s.engine.Shared() { // it may be another server than before
			tx.Queue("numbers_behind", func(r engine.Row) error { raised = true; return r.Scan(new(int64)) })
		}
		return nil
	})
	if err == nil && raised {
		s.cfg.Log.Warn(numbersRaised)
	}
	if err == nil && correct {
		s.nextCorrection = time.Now().Add(time.Minute)
	}
}

// mayCorrectTimes says whether it is time to look for times that are further ahead than is possible.
func (s *Inbox) mayCorrectTimes() bool { return !time.Now().Before(s.nextCorrection) }

// correctTimes queues the correction of times that are further ahead than is possible now.
func (s *Inbox) correctTimes(tx engine.Tx, now int64) error {
	names, err := receiversOf(tx)
	if err != nil {
		return err
	}
	// Leases get twice their time: another replica may get one at this moment, with a later reading of the
	// clock. In a file they do not end.
	leaseEnd := clock.Never
	if s.engine.Shared() {
		leaseEnd = now + clock.Micros(2*s.leaseTime)
	}
	retry := now + clock.Micros(2*lane.MaxBackoff)
	latestDue := map[int64]int64{lane.LastOK: now, lane.LastFailed: retry, lane.LastDown: retry}
	for _, name := range names {
		tx.Queue("lane_try_correct", nil, now, name)
		for result, latest := range latestDue {
			tx.Queue("lane_due_correct", nil, now, now+clock.Micros(lane.MaxRetryAfter), name, result, latest, leaseEnd)
		}
	}
	return nil
}

// receiversOf returns the names of receivers that lanes have.
func receiversOf(tx engine.Tx) (names []string, err error) {
	names = []string{}
	tx.Queue("receivers", into(&names, scanText))
	err = tx.Send()
	return names, err
}

// gather returns the works for one transaction: o, and those that wait in the queue.
func (s *Inbox) gather(o *work) []*work {
	works, bytes := []*work{o}, o.bytes
	for len(works) < maxBatchWorks && bytes < maxBatchBytes {
		select {
		case o = <-s.works:
			works, bytes = append(works, o), bytes+o.bytes
		default:
			return works
		}
	}
	return works
}

// drain writes what was submitted before the inbox was closed.
func (s *Inbox) drain() {
	for {
		select {
		case o := <-s.works:
			if s.health.lastErr() != nil {
				o.failed(ErrClosed)
				continue
			}
			s.commit(s.gather(o))
		default:
			return
		}
	}
}

// commit runs a transaction for works. It returns an error if the database failed. If the database refuses a
// statement, one work is to blame: commit splits them in halves until that one is alone, and only that one fails.
func (s *Inbox) commit(works []*work) error {
	works = slices.DeleteFunc(works, func(w *work) bool { return w.wanted != nil && !w.wanted() })
	if len(works) == 0 {
		return nil
	}
	err := s.transact(works)
	var refused *engine.StatementError
	if errors.As(err, &refused) && len(works) > 1 {
		half := len(works) / 2
		return errors.Join(s.commit(works[:half:half]), s.commit(works[half:]))
	}
	if err != nil {
		for _, w := range works {
			w.failed(err)
		}
	}
	if errors.As(err, &refused) {
		s.cfg.Log.Error("the database refuses what usher wants to write", "err", err)
		return nil
	}
	return err
}

// transact runs one transaction for works.
func (s *Inbox) transact(works []*work) error {
	t := new(sqlTurn)
	write := s.write
	if s.cfg.ReadOnly {
		write = s.engine.Write // what a person may not do here says nothing about the inbox
	}
	err := write(func(tx engine.Tx) error {
		t.end() // a former run
		t = s.newTurn(tx)
		if err := t.load(works); err != nil {
			return err
		}
		for _, w := range works {
			w.decide(t)
			if t.err != nil {
				return t.err
			}
		}
		t.save()
		return nil
	})
	// After ErrDoubt the senders get 503 and send again. If the transaction was committed after all, that is a
	// duplicate: the server keeps these lanes locked until it has ended the transaction. Entitlements go on as
	// before: no sender has a 200 for it.
	t.end()
	if err != nil {
		return err
	}
	s.countChange(t)
	s.feed.committed()
	for _, do := range t.AfterCommit {
		do()
	}
	return nil
}

// countChange has a committed transaction show in the figures, before callers get their answers.
func (s *Inbox) countChange(t *sqlTurn) {
	if t.HasFinished {
		s.sweepSoon.Store(true)
	}
	if t.HasInvalid {
		s.sweepInvalidSoon.Store(true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.counted; t.byPerson || f.Pending+f.Parked+f.Tenants <= s.cfg.Limits.AlwaysCounted {
		s.changes++
	}
	for name, bytes := range t.AddedBytes {
		s.room.everAdded[name] += max(0, bytes)
		if s.room.counts == t.counts || bytes > 0 { // else a count may have seen already that there are less
			s.room.used[name] += bytes
		}
	}
}

type nothing = struct{}

// orOutage returns the error of a piece of work. If ctx ended before the writer had confirmed it, that is the outage,
// if there is one.
func (s *Inbox) orOutage(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return s.outage()
}

// outage is the error of what the database did not answer in time.
func (s *Inbox) outage() error { return cmp.Or(s.health.lastErr(), errNotInTime) }

var errNotInTime = errors.New("the inbox did not confirm the webhook in time")
