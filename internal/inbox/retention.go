package inbox

import (
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// Retention. Finished webhooks are deleted in small steps between other transactions: the oldest, if there are too
// many, or if they are too large together or too old. One replica at a time does it.

const (
	// maxSweep is how many webhooks one transaction deletes. Deliveries wait meanwhile, so it is not more.
	maxSweep = 2000
	// maxSweepBytes is about how many bytes it deletes.
	maxSweepBytes = 16 << 20
	// sweepInterval is the time between two such transactions, each of which counts what is finished; sweepPause is
	// that time while there is more to delete.
	sweepInterval = time.Second / 4
	sweepPause    = time.Second / 10
)

// A sweeper deletes between the writer's transactions.
type sweeper struct {
	*writer
	nextSweep     time.Time // not before this time it deletes more of what was kept for too long
	lastFullSweep time.Time // when it last deleted everything that is too old
}

// sweepIfDue deletes some of the webhooks that are kept for too long. Each minute it also deletes what else is too old.
func (s *sweeper) sweepIfDue() {
	full := time.Since(s.lastFullSweep) > time.Minute
	if s.cfg.ReadOnly || s.health.lastErr() != nil || time.Now().Before(s.nextSweep) || !s.sweepSoon && !s.sweepInvalidSoon && !full {
		return
	}
	s.sweepSoon = false
	invalid := s.sweepInvalidSoon
	s.sweepInvalidSoon = false
	more, err := s.sweepOnce(full, invalid)
	now := time.Now()
	s.nextSweep = now.Add(sweepInterval)
	if more {
		s.nextSweep = now.Add(sweepPause)
	}
	if full && err == nil {
		s.lastFullSweep = now
	}
	if full || invalid { // the count of invalid webhooks may have changed
		s.figures.changed()
	}
	if more || err != nil {
		s.sweepSoon = true
	}
}

func (s *sweeper) sweepOnce(full, invalid bool) (more bool, err error) {
	lim := s.cfg.Limits
	err = s.write(func(tx engine.Tx) error {
		more = false
		var now, locked int64
		tx.Queue("sweep_lock", func(r engine.Row) error { return r.Scan(&locked) })
		tx.Now(&now)
		if err := tx.Send(); err != nil || locked == 0 { // another replica does it
			return err
		}
		now = s.applyOffset(now)
		if full {
			tx.Queue("actions_expire", nil, now-clock.Micros(lim.ActionAge))
			tx.Queue("missed_end", nil, now-clock.Micros(missedAge), now)
			tx.Queue("eras_expire", nil)
		}
		more, err = sweepFinished(tx, lim, now-clock.Micros(lim.FinishedAge))
		return err
	})
	if err == nil && (full || invalid) {
		err = s.sweepInvalid()
	}
	return more, err
}

// sweepInvalid deletes the oldest invalid webhooks, if they are too many, too old, or too large together.
func (s *sweeper) sweepInvalid() error {
	lim := s.cfg.Limits
	lanes, ids := make(map[webhookgate.LaneName]bool), []int64(nil)
	err := s.read(s.run, func(tx engine.Tx) error {
		tx.Queue("invalid_oldest", func(r engine.Row) error {
			var id int64
			var name webhookgate.LaneName
			err := r.Scan(&id, &name.Tenant, &name.Platform, &name.Type)
			lanes[name], ids = true, append(ids, id)
			return err
		}, int64(lim.Invalid), lim.InvalidBytes, s.Now().Add(-lim.InvalidAge).UnixMicro())
		return tx.Send()
	})
	if err != nil || len(ids) == 0 {
		return err
	}
	gone := 0
	ops := []*op{{lanes: lane.SortedNames(lanes), hooks: ids, done: func(error) {}, run: func(t *turn) error {
		gone = 0
		for _, id := range ids {
			if w := t.hooks[id]; w != nil && t.Lanes[w.LaneName].Expire(w) {
				gone++
			}
		}
		return nil
	}}}
	t, err := s.transact(ops, nil)
	if err != nil {
		return err
	}
	if s.end(t, ops); gone == 0 {
		return nil
	}
	s.cfg.Log.Warn("deleted invalid webhooks that nobody has dealt with: they are too many or too old", "count", gone)
	return s.write(func(tx engine.Tx) error {
		tx.Queue("webhook_delete", nil, ids)
		tx.Queue("content_delete", nil, ids)
		return nil
	})
}

// sweepFinished deletes the oldest of the finished webhooks, as long as there are too many, or too many bytes, or
// they are from before a time.
func sweepFinished(tx engine.Tx, lim Limits, before int64) (more bool, err error) {
	var count, bytes, first int64
	total := func(r engine.Row) error { return r.Scan(&count, &bytes, &first) }
	tx.Queue("finished_total", total, int64(lim.Finished+maxSweep))
	if err := tx.Send(); err != nil {
		return false, err
	}
	most := min(count-int64(lim.Finished), maxSweep)
	if bytes > lim.FinishedBytes || first < before {
		most = maxSweep
	}
	if most <= 0 {
		return false, nil
	}
	var old []int64
	deleted := int64(0)
	tx.Queue("finished_oldest", func(r engine.Row) error {
		var seq, size, changed int64
		err := r.Scan(&seq, &size, &changed)
		switch {
		case count <= int64(lim.Finished) && bytes <= lim.FinishedBytes && changed >= before:
		case deleted >= maxSweepBytes:
			more = true
		default:
			old = append(old, seq)
			count, bytes, deleted = count-1, bytes-size, deleted+size
		}
		return err
	}, most)
	if err := tx.Send(); err != nil {
		return false, err
	}
	if len(old) > 0 {
		tx.Queue("webhook_delete", nil, old) // but not one that somebody has sent again meanwhile
		tx.Queue("content_delete", nil, old)
	}
	return more || len(old) == maxSweep, nil
}
