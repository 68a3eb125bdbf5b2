package store

import (
	"math/rand/v2"
	"time"
)

// Retention: what is finished goes in small deletes, by the replica that gets the lock for it.

// sweepMost is how many rows one transaction deletes. Deliveries wait for it.
const maxSweep = 2000

// sweepEach is how often, while there is something to delete.
const sweepInterval = 100 * time.Millisecond

// sweep deletes some of what is kept for too long.
func (s *Store) sweep() {
	full := time.Since(s.lastFullSweep) > time.Minute // what goes by age or bytes may take a minute
	refused := s.sweepRefusedSoon.Swap(false)
	if !s.sweepSoon.Swap(false) && !full && !refused {
		return
	}
	more, err := s.sweepOnce(full, refused)
	s.lastSweep = time.Now()
	if full && err == nil {
		s.lastFullSweep = s.lastSweep
	}
	if full || refused { // there may be less of what was refused
		s.mu.Lock()
		s.figures.changeCount++
		s.mu.Unlock()
	}
	if err != nil {
		s.health.record(s.cfg.Log, err)
	}
	if more || err != nil {
		s.sweepSoon.Store(true)
	}
}

func (s *Store) sweepOnce(full, refused bool) (more bool, err error) {
	lim := s.cfg.Limits
	err = s.cfg.Engine.Write(func(tx Tx) error {
		more = false
		var now, mine int64
		cut := finishedPos{}
		tx.Queue("sweep_lock", func(r Row) error { return r.Scan(&mine) })
		tx.Now(&now)
		tx.Queue("finished_beyond", cut.scan, int64(lim.Finished))
		if err := tx.Send(); err != nil || mine == 0 {
			return err
		}
		now = s.applyOffset(now)
		if full {
			cut.advance(now-micros(lim.FinishedAge), never)
			if err := s.advanceByBytes(tx, &cut); err != nil {
				return err
			}
			tx.Queue("seen_expire", nil, now-micros(seenIDsFor))
			tx.Queue("action_expire", nil, now-micros(lim.ActionAge))
		}
		if full || refused {
			if err := s.sweepRefused(tx, now); err != nil {
				return err
			}
		}
		var gone []int64
		tx.Queue("finished_up_to", func(r Row) error {
			var seq int64
			err := r.Scan(&seq)
			gone = append(gone, seq)
			return err
		}, cut.changed, cut.seq, int64(maxSweep))
		if err := tx.Send(); err != nil {
			return err
		}
		if len(gone) > 0 {
			tx.Queue("seen_delete_discarded", nil, gone) // one that was discarded may come again; of others the id is that of a copy
			tx.Queue("finished_delete", nil, gone)       // unless somebody has sent one again meanwhile
			tx.Queue("content_delete_orphans", nil, gone)
		}
		more = len(gone) == maxSweep
		return nil
	})
	return more, err
}

// cutoff is the last finished webhook to delete, by when it was finished.
type finishedPos struct{ changed, seq int64 }

func (c *finishedPos) scan(r Row) error { return r.Scan(&c.changed, &c.seq) }

func (c *finishedPos) advance(changed, seq int64) {
	if changed > c.changed || changed == c.changed && seq > c.seq {
		c.changed, c.seq = changed, seq
	}
}

// cutBytes raises the cut-off to where the newest finished webhooks take as many bytes as they may.
func (s *Store) advanceByBytes(tx Tx, cut *finishedPos) error {
	var sum int64
	tx.Queue("finished_bytes", func(r Row) error { return r.Scan(&sum) })
	if err := tx.Send(); err != nil || sum <= s.cfg.Limits.FinishedBytes {
		return err
	}
	sum = 0
	tx.Queue("finished_sizes", func(r Row) error {
		var one finishedPos
		var size int64
		if err := r.Scan(&one.changed, &one.seq, &size); err != nil {
			return err
		}
		if sum += size; sum > s.cfg.Limits.FinishedBytes {
			cut.advance(one.changed, one.seq)
		}
		return nil
	})
	return tx.Send()
}

// jitter returns between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
