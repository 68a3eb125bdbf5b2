package inbox

import (
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// How much of what is finished is kept to be looked at. The file grows to that and
// no further: bbolt uses freed pages again.
const (
	keepCount = 10_000
	keepBytes = 256 << 20
	keepAge   = 7 * 24 * time.Hour

	trimAtOnce = 200         // deletions in one transaction, besides as many as it finishes: a sender waits for it
	trimEvery  = time.Minute // look for what has become too old
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

func (h *history) load(tx *bbolt.Tx) error {
	records := tx.Bucket(recordBucket)
	return tx.Bucket(statusBucket).ForEach(func(k, v []byte) error {
		if finished(v) {
			h.count++
			h.bytes += int64(len(records.Get(k)))
		}
		return nil
	})
}

// changed notes that a record's status becomes another.
func (h *history) changed(tx *bbolt.Tx, id uint64, was, now []byte) {
	if finished(was) == finished(now) {
		return
	}
	size := int64(len(tx.Bucket(recordBucket).Get(idKey(id))))
	if finished(now) {
		h.count++
		h.added++
		h.bytes += size
	} else {
		h.count--
		h.bytes -= size
	}
}

// trim deletes the oldest of what is finished, some at a time.
func (h *history) trim(tx *bbolt.Tx, now time.Time) error {
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
	k, v := c.Seek(idKey(h.from))
	for visited := 0; k != nil; k, v = c.Next() {
		if visited++; visited > 20*most || len(victims) == most {
			h.behind = true
			break
		}
		if !finished(v) {
			continue
		}
		if count <= keepCount && bytes <= keepBytes {
			status, err := decodeStatus(v)
			if err == nil && now.Sub(status.Changed) < keepAge {
				k = nil // those that follow are younger, or near enough
				break
			}
		}
		count, bytes = count-1, bytes-int64(len(records.Get(k)))
		victims = append(victims, slices.Clone(k)) // a deletion may move what k points to
	}
	if h.from = 0; k != nil {
		h.from = keyID(k)
	}
	for _, key := range victims {
		if err := drop(tx, key); err != nil {
			return err
		}
	}
	h.count, h.bytes = count, bytes
	return nil
}

// drop deletes a record, its status, and what its lane remembers of it.
func drop(tx *bbolt.Tx, key []byte) error {
	records := tx.Bucket(recordBucket)
	if err := forgetTailOf(tx, key, records.Get(key)); err != nil {
		return err
	}
	if err := tx.Bucket(statusBucket).Delete(key); err != nil {
		return err
	}
	return records.Delete(key)
}

// forgetTailOf drops a lane's memory if it is of the record that goes: lanes that
// nothing is left of must not pile up.
func forgetTailOf(tx *bbolt.Tx, key, record []byte) error {
	w, _, err := decodeRecord(record)
	if err != nil {
		return nil // its lane can't be told; what is kept of it does no harm
	}
	lanes := tx.Bucket(laneBucket)
	t, err := decodeTail(lanes.Get(laneKey(w.Lane)))
	if err != nil || t.ID != keyID(key) {
		return nil
	}
	return lanes.Delete(laneKey(w.Lane))
}
