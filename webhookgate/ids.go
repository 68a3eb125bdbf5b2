package webhookgate

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"usher/internal/clock"
)

const (
	// idWindow is how long a signed webhook-id is remembered. A signature is valid from five minutes
	// before its timestamp until five minutes after it, so a recorded webhook can be sent again for
	// ten minutes.
	idWindow = 15 * time.Minute

	// maxIDs is how many ids are remembered: each needs two entries.
	maxIDs = 1 << 15
)

// signedIDs remembers the webhook-ids that senders have signed. Somebody who has recorded a webhook
// could send it again, and undo what came since. An id counts only together with the body. The
// entries are in order of arrival.
type signedIDs struct{ *lru.Cache[idKey, signedEntry] }

// idKey is the hash of an id, which limits its size, and the digest of the body. With a digest of
// zeros it is the key of the last webhook with this id, whatever its body.
type idKey struct{ id, digest [sha256.Size]byte }

// signedEntry is a webhook with a signed id.
type signedEntry struct {
	lane LaneName
	turn *turn
	at   time.Time
}

// find returns the turn of the webhook that has the id and the body of w, unless its delivery has
// failed: then the sender may send it again. reused says that the last webhook with this id had
// another body.
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
	return nil, ok && other.turn.digest != w.Digest
}

// note remembers that w has this turn, its own or that of the webhook that it is a copy of.
func (s signedIDs) note(w *Webhook, t *turn) {
	if w.SignedID == "" {
		return
	}
	entry := signedEntry{turn: t, at: time.Now(), lane: w.Lane}
	id := sha256.Sum256([]byte(w.SignedID))
	s.Add(idKey{id: id}, entry)
	s.Add(idKey{id, w.Digest}, entry)
}

// forget drops the ids of a lane, and reports whether it had any.
func (s signedIDs) forget(l LaneName) (any bool) {
	for _, key := range s.Keys() {
		if entry, _ := s.Peek(key); entry.lane == l {
			any = s.Remove(key) || any
		}
	}
	return any
}

// lanes returns the lanes of all ids. A lane with several ids occurs several times.
func (s signedIDs) lanes() (all []LaneName) {
	for _, entry := range s.Values() {
		all = append(all, entry.lane)
	}
	return all
}
