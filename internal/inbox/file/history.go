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

	trimAtOnce = 200         // deletions in one transaction, besides as many as it finishes: a sender waits for it
	trimEvery  = time.Minute // look for what has become too old
	trimIdle   = time.Hour   // the same while nothing is written
)

// history counts what is finished. It belongs to the writer.
type history struct {
	count   int
	bytes   int64
	from    uint64    // where the last trim stopped
	checked time.Time // when it last looked for what has become too old
	behind  bool      // it stopped before it was done
	added   int       // by the transaction that is being made
}

func (h *history) add(size int64)    { h.count, h.added, h.bytes = h.count+1, h.added+1, h.bytes+size }
func (h *history) remove(size int64) { h.count, h.bytes = h.count-1, h.bytes-size }

// patience is how long the next trim may wait for something that is written anyway.
func (h *history) patience() time.Duration {
	if h.behind {
		return trimEvery
	}
	return trimIdle
}

// trim deletes the oldest of what is finished, some at a time.
func (s *Store) trim(tx *bbolt.Tx, now time.Time) error {
	h := &s.history
	most := trimAtOnce + h.added
	h.added = 0
	full := h.count > keepCount+keepCount/10 || h.bytes > keepBytes+keepBytes/10
	if !full && !h.behind && now.Sub(h.checked) < trimEvery {
		return nil
	}
	h.checked, h.behind = now, false
	var victims [][]byte
	count, bytes := h.count, h.bytes
	records := tx.Bucket(recordBucket)
	c := tx.Bucket(statusBucket).Cursor()
	k, v := c.Seek(record.IDKey(h.from))
	for visited := 0; k != nil; k, v = c.Next() {
		if visited++; visited > 20*most || len(victims) == most {
			h.behind = true
			break
		}
		if !record.Finished(v) {
			continue
		}
		if count <= keepCount && bytes <= keepBytes {
			status, err := record.DecodeStatus(v)
			if err == nil && now.Sub(status.Changed) < keepAge {
				k = nil // those that follow are younger, or near enough
				break
			}
		}
		count, bytes = count-1, bytes-int64(len(records.Get(k)))
		victims = append(victims, slices.Clone(k)) // a deletion may move what k points to
	}
	if h.from = 0; k != nil {
		h.from = record.KeyID(k)
	}
	for _, key := range victims {
		if err := s.drop(tx, key); err != nil {
			return err
		}
	}
	h.count, h.bytes = count, bytes
	return nil
}

// drop deletes a record and its status. Where its lane still needs it, as its snapshot or to tell
// copies, that outlives the record: the window must not end with the history.
func (s *Store) drop(tx *bbolt.Tx, key []byte) error {
	records, id := tx.Bucket(recordBucket), record.KeyID(key)
	value := records.Get(key)
	if w, err := record.DecodeSlim(value); err == nil { // else nobody knows whose it is
		m := s.memory(tx, w.Lane)
		if m.Snapshot == id {
			err = keepSnapshot(tx, w.Lane, id, value)
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
