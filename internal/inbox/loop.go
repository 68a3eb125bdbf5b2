package inbox

import (
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
)

// A loop is the goroutine that writes.
type loop struct {
	*writer
	pulse   *pulse
	sweeper *sweeper
}

// A batch has at most this many operations, and bytes.
const (
	maxBatch      = 256
	maxBatchBytes = 8 << 20
)

// serve runs one transaction after the other until the inbox is closed.
func (s *loop) serve() {
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
		case <-s.courier.claimNow:
			ops = s.gather(ops)
		case <-s.pulse.gateIsUp:
			s.pulse.beatIfDue()
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
			s.sweeper.sweepIfDue()
			if len(later) > 0 {
				time.AfterFunc(2*time.Millisecond, s.courier.wakeWriter)
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

// everySecond looks whether the database can be reached, if nothing else shows it, and does what is due.
func (s *loop) everySecond() {
	if s.idle || s.health.lastErr() != nil || s.mayCorrectTimes() {
		s.checkDatabase()
	}
	s.idle = true
	if s.health.lastErr() == nil && !s.cfg.ReadOnly {
		s.engine.Maintain()
		s.sweeper.sweepIfDue()
	}
	s.pulse.beatIfDue()
}

// gather returns the operations for one transaction: these, and those that wait in the queue.
func (s *loop) gather(ops []*op) []*op {
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
func (s *loop) drain(ops []*op) {
	for ops = s.gather(ops); len(ops) > 0; ops = s.gather(ops) {
		if s.health.lastErr() == nil {
			ops, _ = s.commit(ops)
		}
		for _, o := range ops {
			o.done(ErrClosed)
		}
		ops = nil
	}
	if s.pulse.beat(false); s.figures.missedInMemory().Webhooks > 0 {
		s.cfg.Log.Error("the inbox cannot be written: after a restart usher does not know that webhooks got a 5xx")
	}
}

// checkDatabase finds out whether the database can be reached. To open it, or after an outage, it also writes. Each
// minute, and when the database's clock has jumped, it corrects times that are further ahead than is possible, because the
// clock was set back since, and gives lanes the receivers of the settings.
func (s *loop) checkDatabase() {
	var correct bool
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
			tx.Queue("lane_due_correct", nil, now, now+clock.Micros(lane.MaxBackoff+maxJump), now+clock.Micros(max(lane.MaxRetryAfter, s.cfg.LongestLease())+maxJump),
				now+clock.Micros(2*s.cfg.LongestLease()+time.Minute))
			if s.cfg.Receivers != nil {
				s.route(tx, now)
			}
		}
		if s.health.unproven() {
			tx.Queue("touch", nil)
		}
		return nil
	})
	if err == nil && correct {
		s.nextCorrection = time.Now().Add(time.Minute)
	}
}

// mayCorrectTimes says whether it is time to look for times that are further ahead than is possible.
func (s *loop) mayCorrectTimes() bool { return !time.Now().Before(s.nextCorrection) }
