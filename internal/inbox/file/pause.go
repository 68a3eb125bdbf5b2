package file

import (
	"encoding/json"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
)

// Pause has deliveries held back until Resume, also after a restart. Those under way may finish.
func (s *Store) Pause(p record.Pause) error {
	p.Since = time.Now()
	return s.do(&op{act: func(tx *bbolt.Tx, _ *op) error {
		now := s.Paused()
		if slices.ContainsFunc(now, p.Same) {
			return nil
		}
		return s.writePauses(tx, append(slices.Clip(now), p))
	}}).err
}

// Resume ends a pause, and says whether there was one.
func (s *Store) Resume(p record.Pause) (was bool, err error) {
	r := s.do(&op{act: func(tx *bbolt.Tx, o *op) error {
		before := s.Paused()
		now := slices.DeleteFunc(slices.Clone(before), p.Same)
		if o.result.count = len(before) - len(now); o.result.count == 0 {
			return nil
		}
		return s.writePauses(tx, now)
	}})
	return r.count > 0, r.err
}

// Paused is what is held back.
func (s *Store) Paused() []record.Pause { return *s.paused.Load() }

func (s *Store) holdBack(pauses []record.Pause) {
	s.paused.Store(&pauses)
	s.courier.HoldBack(pauses)
}

func (s *Store) writePauses(tx *bbolt.Tx, pauses []record.Pause) error {
	b, err := json.Marshal(pauses)
	if err != nil {
		return err
	}
	s.holdBack(pauses)
	return tx.Bucket(metaBucket).Put(pausedKey, record.Seal(b))
}

// loadPauses holds back what was held back before the start.
func (s *Store) loadPauses(tx *bbolt.Tx) {
	var pauses []record.Pause
	if b := tx.Bucket(metaBucket).Get(pausedKey); b != nil {
		b, err := record.Unseal(b)
		if err != nil || json.Unmarshal(b, &pauses) != nil {
			s.cfg.Log.Error("what was paused is damaged: everything is paused until somebody resumes all deliveries")
			pauses = []record.Pause{{}}
		}
	}
	if len(pauses) > 0 {
		s.cfg.Log.Warn("deliveries are paused by hand", "what", pauses)
	}
	s.holdBack(pauses)
}
