package webhookgate

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"usher/internal/clock"
)

const (
	// idWindow is how long a signed webhook-id counts. A signature is valid from five minutes before
	// its time until five minutes after it, so a recorded webhook is good for ten.
	idWindow = 15 * time.Minute

	// maxIDs limits how many are remembered: each needs two entries. maxIDLane limits how long the
	// codes of a lane may be, together, if Forget is to find its ids.
	maxIDs    = 1 << 15
	maxIDLane = 256
)

// signedIDs remembers the webhook-ids that senders have signed, so that a recorded webhook cannot
// be sent again: it would undo what came since. An id counts together with the body. Entries are
// in order of arrival.
type signedIDs struct{ *lru.Cache[idKey, taken] }

// idKey is an id and a body, or, with no digest, an id with whatever body. The hash limits how much
// room an id takes.
type idKey struct{ id, digest [sha256.Size]byte }

// taken is a webhook that was taken in.
type taken struct {
	lane   Lane
	digest [sha256.Size]byte
	turn   *turn
	at     time.Time
}

// find returns the turn of the webhook with the id and the body of w, unless it has failed. reused
// says that the id came with another body.
func (s signedIDs) find(w *Webhook) (t *turn, reused bool) {
	if w.SignedID == "" {
		return nil, false
	}
	for _, first, ok := s.GetOldest(); ok && clock.Since(first.at) >= idWindow; _, first, ok = s.GetOldest() {
		s.RemoveOldest()
	}
	key := idKey{sha256.Sum256([]byte(w.SignedID)), w.Digest}
	if same, ok := s.Peek(key); ok && !same.turn.failed() {
		return same.turn, false
	}
	other, ok := s.Peek(idKey{id: key.id})
	return nil, ok && other.digest != w.Digest
}

// note remembers that w was taken in, with this turn.
func (s signedIDs) note(w *Webhook, t *turn) {
	if w.SignedID == "" {
		return
	}
	entry := taken{digest: w.Digest, turn: t, at: time.Now()}
	if w.Lane.size() <= maxIDLane {
		entry.lane = w.Lane
	}
	id := sha256.Sum256([]byte(w.SignedID))
	s.Add(idKey{id: id}, entry)
	s.Add(idKey{id, w.Digest}, entry)
}

// drop forgets w, which has failed with this turn: it can be sent again.
func (s signedIDs) drop(w *Webhook, t *turn) {
	key := idKey{sha256.Sum256([]byte(w.SignedID)), w.Digest}
	if same, ok := s.Peek(key); ok && same.turn == t {
		s.Remove(key)
	}
}

// forget drops the ids of a lane, and reports whether there were any.
func (s signedIDs) forget(l Lane) (any bool) {
	for _, key := range s.Keys() {
		if entry, _ := s.Peek(key); entry.lane == l {
			any = s.Remove(key) || any
		}
	}
	return any
}

// lanes returns those that have ids here, some of them several times.
func (s signedIDs) lanes() (all []Lane) {
	for _, entry := range s.Values() {
		all = append(all, entry.lane)
	}
	return all
}
