package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
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
		b, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := tx.Bucket(pauseBucket).Put(pauseKey(p), record.Seal(b)); err != nil {
			return err
		}
		s.holdBack(append(now, p))
		return nil
	}}).err
}

// pauseKey is what is held back, for people to read; or a digest of it: a tenant's code may be longer
// than a key can be, and a transaction that fails breaks the inbox.
func pauseKey(p record.Pause) []byte {
	key := []byte(p.String())
	if len(key) <= 1<<10 {
		return key
	}
	sum := sha256.Sum256(key)
	return sum[:]
}

// Resume ends a pause, and says whether there was one.
func (s *Store) Resume(p record.Pause) (was bool, err error) {
	r := s.do(&op{act: func(tx *bbolt.Tx, o *op) error {
		before := s.Paused()
		now := slices.DeleteFunc(slices.Clone(before), p.Same)
		if len(now) == len(before) {
			return nil
		}
		o.result.count = 1
		// By what they say: a damaged one counts as one of all deliveries.
		var keys [][]byte
		b := tx.Bucket(pauseBucket)
		err := b.ForEach(func(k, v []byte) error {
			if q, _ := readPause(v); q.Same(p) {
				keys = append(keys, bytes.Clone(k))
			}
			return nil
		})
		for _, k := range keys {
			err = errors.Join(err, b.Delete(k))
		}
		s.holdBack(now)
		return err
	}})
	return r.count > 0, r.err
}

// Paused is what is held back.
func (s *Store) Paused() []record.Pause { return *s.paused.Load() }

func (s *Store) holdBack(pauses []record.Pause) {
	pauses = slices.Clip(pauses)
	s.paused.Store(&pauses)
	s.courier.HoldBack(pauses)
}

func readPause(b []byte) (p record.Pause, err error) {
	if b, err = record.Unseal(b); err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return record.Pause{}, err
	}
	return p, nil
}

// loadPauses holds back what was held back before the start.
func (s *Store) loadPauses(tx *bbolt.Tx) error {
	var pauses []record.Pause
	err := tx.Bucket(pauseBucket).ForEach(func(k, v []byte) error {
		p, err := readPause(v)
		if err != nil {
			s.cfg.Log.Error("damaged pause: everything is paused until somebody resumes all deliveries", "what", string(k))
		}
		pauses = append(pauses, p)
		return nil
	})
	if len(pauses) > 0 {
		s.cfg.Log.Warn("deliveries are paused by hand", "what", pauses)
	}
	s.holdBack(pauses)
	return err
}
