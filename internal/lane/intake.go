package lane

import (
	"bytes"
	"fmt"
	"slices"
	"time"
	"usher/internal/clock"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// An Answer says what was done with a webhook that Add got.
type Answer struct {
	DuplicateOf string // the webhook-id of the original; empty: it is no duplicate, and was taken in
	Err         error

	ID       int64  // its number
	Again    bool   // see lane.duplicate
	Lease    *Lease // this process may deliver the webhook now
	Unleased bool   // the lane was idle, but this process had no room: any process may lease it
}

func NameOf(rc *receiver.Receiver) string {
	if rc == nil {
		return ""
	}
	return rc.Name
}

// dedupDigest is the digest that arriving webhooks are compared with. Only snapshots have duplicates.
func dedupDigest(w *Webhook) []byte {
	if !w.Snapshot {
		return nil
	}
	return w.Digest
}

// seenIDsFor is how long a signed webhook-id is remembered. It is longer than a signature is valid.
const SeenIDsFor = 15 * time.Minute

// A seenID is a signed webhook-id in a lane, as its hash.
type SignedID struct {
	Lane webhookgate.LaneName
	Hash [32]byte
}

// A seenRow is a row of the table seen_id: a signed webhook-id that was seen, with the body that it came with.
type SeenID struct {
	SignedID
	Digest []byte
	At     int64

	// The original.
	Seq   int64 // zero: it counts as delivered
	UUID  string
	State State
}

// mayAccept says why an invalid webhook cannot be taken in.
func (l *Lane) MayAccept(in *Incoming, id int64, force bool) error {
	if in.Accepting == nil || in.Accepting.State != Invalid {
		return ErrNotInvalid
	}
	// A snapshot that was taken in after it, other than a copy, would have superseded it.
	if newer := l.t.Inbox.LastSnapshot(l); newer != nil && in.Accepting.Newer && in.Snapshot && !force {
		return &OverwriteError{id, &Webhook{ID: newer.Seq, UUID: newer.Webhook, Platform: l.Platform, Tenant: l.Tenant}}
	}
	return nil
}

// An incoming webhook is one that shall be taken in.
type Incoming struct {
	*Webhook  // as the row that it becomes; take copies it
	Name      webhookgate.LaneName
	IDHash    [32]byte
	Signed    bool
	To        *receiver.Receiver
	Brings    *snapshot.Stored // nil: the webhook is no snapshot
	Later     bool             // it may be delivered when the courier comes by
	Accepting *Webhook         // the invalid webhook that somebody accepts: so it is no duplicate
	Arrived   int64            // when it came, by the database's clock; zero: it did not come from the sender
	Came      time.Time        // the same, by our clock
}

// take answers with the webhook-id of the original if the webhook is a duplicate, and else puts it at the end of the lane. If the lane
// was idle, and there is room at the courier, that also gives the lease.
func (l *Lane) Receive(in *Incoming) (a Answer) {
	t := l.t
	if original, again := l.originalOf(in); original != "" && in.Accepting == nil {
		l.stamp()
		l.noteReceived(in, again)
		seq := int64(0)
		if original == l.TailID {
			seq = l.Tail
		}
		l.rememberID(in, seq, original) // the same id must be a duplicate later, too, whatever has come meanwhile
		if in.Snapshot && !again {
			for _, old := range l.invalidOnes() {
				old.setNewer(true)
			}
		}
		return Answer{DuplicateOf: original, Again: again}
	}
	return l.takeIn(in, t.StoreUnclaimed && in.To == nil)
}

// takeIn puts a webhook at the end of the lane. With store it is stored, unless it must queue behind another one.
func (l *Lane) takeIn(in *Incoming, store bool) (a Answer) {
	t := l.t
	l.setReceiver(in.To)
	stored := store && l.Parked == 0 && l.idle()
	if !stored {
		if err := t.Inbox.HasRoom(l, in.Size); err != nil {
			return Answer{Err: err}
		}
	}
	row := *in.Webhook
	if stored {
		l.store(&row, in.Brings)
	} else {
		a = l.enqueue(&row, in)
	}
	a.ID = row.ID
	l.noteReceived(in, false)
	l.rememberID(in, row.ID, row.UUID)
	if in.Snapshot {
		l.supersedeInvalid(in)
	}
	if in.Accepting != nil {
		l.move(in.Accepting, Replaced, fmt.Sprint("taken in as ", row.ID))
	}
	return a
}

// becomeTail makes a new webhook the lane's tail.
func (l *Lane) becomeTail(row *Webhook, state *snapshot.Stored) {
	l.Tail, l.TailID, l.changed = row.ID, row.UUID, true
	if state != nil {
		s := *state
		s.Seq, s.Received = row.ID, row.Received
		l.inMemory.snapshot = &s
	}
}

// store takes a webhook in as stored: it is not delivered, and dedup goes by usher itself as its receiver.
func (l *Lane) store(row *Webhook, state *snapshot.Stored) {
	l.add(row, Stored)
	l.becomeTail(row, state)
	l.TailDigest = nil
	l.Held, l.HeldAt, l.HeldBy, l.HeldID = dedupDigest(row), l.t.Now, "", row.UUID
}

// enqueue puts a webhook at the end of the lane.
func (l *Lane) enqueue(row *Webhook, in *Incoming) (a Answer) {
	t := l.t
	idle := l.idle()
	l.endExpiredLease()
	former := l.Loaded(l.Tail)
	l.add(row, Waiting)
	l.becomeTail(row, in.Brings)
	l.TailDigest = dedupDigest(row)
	if !idle {
		// Its backoff, its pause and its turn stay, also if nothing older waits any more.
		if former != nil && former.ID != l.LeasedID && l.replaces(row, former) {
			l.move(former, Superseded, supersededWhy)
			if l.Waiting == 1 {
				l.WaitingSince = t.Now
			}
		}
		return a
	}
	// From here on the receiver may hold this webhook or the one before: a try may succeed without our knowing. Only a 2xx says
	// which.
	l.Held, l.WaitingSince = nil, t.Now
	l.clearBackoff()
	l.release(t.Now)
	if in.To == nil || l.Paused || in.Later {
		return a
	}
	if t.Inbox.Reserve(in.To, row.Size) {
		a.Lease = l.newLease(row, in.To)
	} else {
		a.Unleased = true
	}
	return a
}

// replaces says whether the settings want a webhook to supersede the one that waits right before it in the lane.
func (l *Lane) replaces(next, h *Webhook) bool {
	return l.t.Latest && next.ID > h.ID && next.Snapshot && h.Snapshot && h.State == Waiting && h.Again.IsZero()
}

// supersedeInvalid supersedes the tenant's invalid webhooks: this snapshot is newer and complete. It leaves alone events of
// other types, whose content no snapshot has. If this webhook is an invalid one that somebody has accepted, it only supersedes
// those that were last received before it: the others are newer.
func (l *Lane) supersedeInvalid(in *Incoming) {
	for _, old := range l.invalidOnes() {
		sameType := old.Type == in.Type || old.Type == ""
		isOlder := in.Accepting == nil || old.Rank < in.Accepting.Rank
		if sameType && isOlder {
			l.move(old, Superseded, "a newer snapshot of the tenant was taken in")
		} else if sameType {
			old.setNewer(false)
		}
	}
}

// rememberID stores the webhook's signed id, if it has one, together with the original: the webhook itself, or the one that it
// is a duplicate of. seq is the original's number; zero: the original counts as delivered.
func (l *Lane) rememberID(in *Incoming, seq int64, uuid string) {
	if !in.Signed {
		return
	}
	id := &SeenID{SignedID: SignedID{l.LaneName, in.IDHash}, Digest: in.Digest, Seq: seq, At: l.t.Now, State: Waiting, UUID: uuid}
	same := func(known *SeenID) bool { return bytes.Equal(known.Digest, id.Digest) }
	if uuid != in.Webhook.UUID && slices.ContainsFunc(l.seen[id.Hash], func(known *SeenID) bool { return same(known) && l.makesCopy(known) }) {
		return // the 15 minutes count from the first time
	}
	if l.seen != nil {
		l.seen[id.Hash] = slices.DeleteFunc(l.seen[id.Hash], same)
	}
	l.LoadID(id)
	l.newSeen = append(slices.DeleteFunc(l.newSeen, func(r *SeenID) bool { return r.Hash == id.Hash && same(r) }), id)
}

// knowID is for a signed id that was read.
func (l *Lane) LoadID(r *SeenID) {
	if l.seen == nil {
		l.seen = make(map[[32]byte][]*SeenID)
	}
	l.seen[r.Hash] = append(l.seen[r.Hash], r)
}

// makesCopy says whether a webhook with this id and body is a duplicate: not if the original was parked or discarded, or came
// too long ago.
func (l *Lane) makesCopy(r *SeenID) bool {
	state := r.State
	if original := l.Loaded(r.Seq); original != nil { // it may have changed in this transaction
		state = original.State
	}
	return l.recent(r) && (state == Waiting || state.Taken() || state == Superseded)
}

func (l *Lane) recent(r *SeenID) bool { return l.t.Now-r.At < clock.Micros(SeenIDsFor) }

// duplicate returns the webhook-id of the original if the webhook is a duplicate, and else an empty string. This is the whole
// rule:
//
//   - A signed id that was seen within 15 minutes, with the same body, is a duplicate whatever has come since.
//   - While webhooks wait in the lane, a copy of the tail is a duplicate, if the tail still waits.
//   - If none waits, a copy of the snapshot that the receiver holds for sure is a duplicate, if the same receiver accepted
//     it within the window.
//
// Anything else may be a change. In A, B, A the second A is not a duplicate.
//
// again: it is one that came before, by its signed id, and says nothing about what has come since.
func (l *Lane) originalOf(in *Incoming) (original string, again bool) {
	reused := false
	if in.Signed {
		for _, seen := range l.seen[in.IDHash] {
			same := bytes.Equal(seen.Digest, in.Digest)
			if same && l.makesCopy(seen) {
				return seen.UUID, true
			}
			reused = reused || !same && l.recent(seen)
		}
	}
	if reused {
		l.t.Warn("webhook-id was used before, for another body: usher accepts the webhook", "webhook", in.Webhook.UUID, "tenant", in.Tenant)
	}
	if in.Snapshot && l.receiverHas(in.Digest, NameOf(in.To)) {
		return l.TailID, false
	}
	return "", false
}

// hasSnapshot says whether a receiver holds exactly this snapshot, or will, when all waiting webhooks are delivered.
func (l *Lane) receiverHas(digest []byte, receiver string) bool {
	if l.t.DedupWindow == 0 {
		return false
	}
	if l.Waiting > 0 {
		return l.TailDigest != nil && bytes.Equal(l.TailDigest, digest)
	}
	// After a forced redelivery the receiver holds an older snapshot than the tail. Then a copy of that older one is a change,
	// which the sender made after the tail.
	holdsTail := l.Held != nil && l.HeldID == l.TailID && l.HeldBy == receiver
	age := time.Duration(l.t.Now-l.HeldAt) * time.Microsecond
	return holdsTail && bytes.Equal(l.Held, digest) && age.Abs() < l.t.DedupWindow
}

// reject stores a webhook that cannot be taken in. A copy of one that nobody has dealt with is only counted.
func (l *Lane) RecordInvalid(in *Webhook, known *Webhook) *Webhook {
	if known != nil && known.State == Invalid && !known.gone {
		known.Times++
		known.Changed, known.Rank, known.Newer, known.changed = l.t.Time(), l.stamp(), false, true
		return known
	}
	if l.LaneName != (webhookgate.LaneName{}) {
		for all := l.invalidOnes(); len(all) > 0 && len(all) >= l.t.MaxInvalid; all = all[1:] {
			l.t.Warn("deleted an invalid webhook: its tenant has too many", "id", all[0].ID, "tenant", all[0].Tenant)
			l.remove(all[0])
		}
	}
	row := *in
	l.add(&row, Invalid)
	row.Rank = row.ID
	l.t.HasInvalid = true
	return &row
}
