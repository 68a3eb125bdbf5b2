package inbox

import (
	"math/rand/v2"
	"time"

	"usher/internal/inbox/engine"
	"usher/webhookgate"
)

// Retention. Finished webhooks are deleted in small steps between other transactions: the oldest, if there are too many. Each minute, and
// whenever this process has added a sixteenth of the bytes that may be kept, those go, too, that are too old, or too large together. One
// replica at a time does it.

const (
	// maxSweep is how many webhooks one transaction deletes. Deliveries wait meanwhile, so it is not more.
	maxSweep = 2000
	// maxSweepBytes is about how many bytes it deletes.
	maxSweepBytes = 16 << 20
	// sweepInterval is the time between two such transactions while there is more to delete.
	sweepInterval = 100 * time.Millisecond
)

// sweep deletes some of the webhooks that are kept for too long. A full sweep also looks at ages and bytes.
func (s *Inbox) sweep() {
	full := time.Since(s.lastFullSweep) > time.Minute || s.finishedBytes > s.cfg.Limits.FinishedBytes/16
	refused := s.sweepRefusedSoon.Swap(false)
	if !s.sweepSoon.Swap(false) && !full && !refused {
		return
	}
	more, err := s.sweepOnce(full, refused)
	s.lastSweep = time.Now()
	if full && err == nil && !more { // else there is more to delete, and the next one must find it
		s.lastFullSweep, s.finishedBytes = s.lastSweep, 0
	}
	if full || refused { // the count of refused webhooks may have changed
		s.mu.Lock()
		s.figures.changeCount++
		s.mu.Unlock()
	}
	if more || err != nil {
		s.sweepSoon.Store(true)
	}
}

func (s *Inbox) sweepOnce(full, refused bool) (more bool, err error) {
	lim := s.cfg.Limits
	gone := 0 // how many refused webhooks go
	err = s.write(func(tx engine.Tx) error {
		more, gone = false, 0
		var now, locked int64
		var changed, seq int64 // the last finished webhook that goes, in the order in which webhooks were finished
		tx.Queue("sweep_lock", func(r engine.Row) error { return r.Scan(&locked) })
		tx.Now(&now)
		if err := tx.Send(); err != nil || locked == 0 { // another replica does it
			return err
		}
		now = s.applyOffset(now)
		scan := func(r engine.Row) error { return r.Scan(&changed, &seq) }
		tx.Queue("finished_beyond", scan, int64(lim.Finished))
		if full {
			tx.Queue("finished_beyond_all", scan, int64(lim.Finished), lim.FinishedBytes, now-micros(lim.FinishedAge))
			tx.Queue("seen_expire", nil, now-micros(seenIDsFor))
			tx.Queue("action_expire", nil, now-micros(lim.ActionAge))
			tx.Queue("runs_expire", nil, now-micros(lim.ActionAge))
			tx.Queue("unnamed_expire", nil, now-micros(webhookgate.UnnamedFor))
		}
		if err := tx.Send(); err != nil {
			return err
		}
		if full || refused {
			if gone, err = s.sweepRefused(tx, now); err != nil {
				return err
			}
		}
		var old engine.Among
		var bytes int64
		tx.Queue("finished_up_to", func(r engine.Row) error {
			var seq, size int64
			err := r.Scan(&seq, &size)
			if bytes < maxSweepBytes {
				old = append(old, seq)
			} else {
				more = true
			}
			bytes += size
			return err
		}, changed, seq, int64(maxSweep))
		if err := tx.Send(); err != nil {
			return err
		}
		if len(old) > 0 {
			// A signed id without its webhook counts as that of a duplicate. A discarded webhook may be sent again, so its id goes, too.
			tx.Queue("seen_delete_discarded", nil, old)
			tx.Queue("finished_delete", nil, old) // but not one that somebody has sent again meanwhile
			tx.Queue("content_delete_orphans", nil, old)
		}
		more = more || len(old) == maxSweep
		return nil
	})
	if err == nil && gone > 0 {
		s.cfg.Log.Warn("deleted refused webhooks that nobody has dealt with: they are too many or too old", "count", gone)
	}
	return more, err
}

// jitter returns between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
