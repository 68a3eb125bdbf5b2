package file

import (
	"errors"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/record"
)

// How much of what is finished is kept to be looked at. The file grows to that and
// no further: bbolt uses freed pages again.
const (
	keepCount = 10_000
	keepBytes = 256 << 20
	keepAge   = 7 * 24 * time.Hour

	// Deletions in one transaction, for which senders wait: so many, besides as many as it finishes, up to
	// trimMost. What is left after that is deleted soon.
	trimAtOnce = 200
	trimMost   = 5000
	trimSoon   = 100 * time.Millisecond
	trimEvery  = time.Minute // at most: look for what has become too old
)

// history counts what is finished. It belongs to the writer.
type history struct {
	count int
	bytes int64
	from  uint64    // where the last trim stopped before it was done; zero: it was done
	next  time.Time // when something will have become too old
	aging bool      // what is under way looks for that
	added int       // by the transaction that is being made
}

func (h *history) add(size int64)    { h.count, h.added, h.bytes = h.count+1, h.added+1, h.bytes+size }
func (h *history) remove(size int64) { h.count, h.bytes = h.count-1, h.bytes-size }

// pause is how long there is nothing to trim, if nothing comes.
func (h *history) pause() time.Duration {
	if h.from != 0 {
		return trimSoon
	}
	return max(trimEvery, time.Until(h.next))
}

// trim deletes the oldest of what is finished, some at a time, and says how many it has changed.
func (s *Store) trim(tx *bbolt.Tx, now time.Time) (int, error) {
	h := &s.history
	most := min(trimAtOnce+h.added, trimMost)
	h.added = 0
	full := h.count > keepCount+keepCount/10 || h.bytes > keepBytes+keepBytes/10
	if !full && h.from == 0 && now.Before(h.next) {
		return 0, nil
	}
	if h.from == 0 {
		if h.aging = !now.Before(h.next); h.aging {
			h.next = now.Add(keepAge) // of what is finished from now on
		}
	}
	var victims, ahead [][]byte
	count, bytes := h.count, h.bytes
	records := tx.Bucket(recordBucket)
	c := tx.Bucket(statusBucket).Cursor()
	k, v := c.Seek(record.IDKey(h.from))
	for visited := 0; k != nil; k, v = c.Next() {
		if visited++; visited > 20*most || len(victims) == most {
			break
		}
		if !record.Finished(v) {
			continue
		}
		if count <= keepCount && bytes <= keepBytes {
			if !h.aging {
				k = nil
				break
			}
			status, err := record.DecodeStatus(v)
			if left := status.Changed.Add(keepAge).Sub(now); err == nil && left > 0 {
				if left > keepAge { // of a clock that was ahead; it would be kept for as long as that was
					ahead = append(ahead, slices.Clone(k))
				}
				h.next = earlier(h.next, now.Add(max(left, trimEvery)))
				continue
			}
		}
		if value := records.Get(k); value != nil { // else it is lost, and was not counted
			count, bytes = count-1, bytes-int64(len(value))
		}
		victims = append(victims, slices.Clone(k)) // a deletion may move what k points to
	}
	if h.from = 0; k != nil {
		h.from = record.KeyID(k)
	}
	for _, key := range victims {
		if err := s.drop(tx, key); err != nil {
			return 0, err
		}
	}
	for _, key := range ahead {
		if err := s.countFrom(tx, key, now); err != nil {
			return 0, err
		}
	}
	h.count, h.bytes = count, bytes
	return len(victims) + len(ahead), nil
}

// countFrom has a record's age count from now. For dedup it counts no longer.
func (s *Store) countFrom(tx *bbolt.Tx, key []byte, now time.Time) error {
	status, err := record.DecodeStatus(tx.Bucket(statusBucket).Get(key))
	status.Changed = now.Add(-s.cfg.DedupWindow)
	b, err2 := record.EncodeStatus(&status)
	return errors.Join(err, err2, tx.Bucket(statusBucket).Put(key, b))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// drop deletes a record and its status. Where its lane still needs it, as its snapshot or to tell
// copies, that outlives the record: the window must not end with the history.
func (s *Store) drop(tx *bbolt.Tx, key []byte) error {
	records, id := tx.Bucket(recordBucket), record.KeyID(key)
	if w, _, err := record.Decode(records.Get(key)); err == nil { // else nobody knows whose it is
		m, err := s.memory(tx, w.Lane)
		if m.Snapshot == id && err == nil {
			err = s.keepSnapshot(tx, id, w)
		}
		if m.ID == id && err == nil {
			m.stands(tx)
			err = m.write(tx)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(tx.Bucket(statusBucket).Delete(key), records.Delete(key))
}
