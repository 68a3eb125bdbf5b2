package lane

import (
	"bytes"
	"fmt"
	"time"

	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/snapshot"
)

// An Incoming webhook is one that is to be taken in.
type Incoming struct {
	*Webhook // as the row that it becomes; the lane takes a copy

	To        *receiver.Receiver // nil: no receiver takes it
	Brings    *snapshot.Stored   // the tenant's new snapshot; nil: the webhook is none
	Later     bool               // its delivery may wait until the courier comes by
	Accepting *Webhook           // the invalid webhook that somebody accepts: so it is no duplicate
}

// An Answer says what was done with a webhook.
type Answer struct {
	DuplicateOf string // the webhook-id of the original; empty: it is no duplicate, and was taken in
	Err         error

	ID       int64  // its number
	Lease    *Lease // this process may deliver the webhook now
	Unleased bool   // the lane was idle, but this process had no room: any process may lease it
}

// Receive takes a webhook in, unless it is a duplicate: then it answers with the webhook-id of the original. If the
// lane was idle, and there is room at the courier, the answer also has the lease.
func (l *Lane) Receive(in *Incoming) Answer {
	original := l.originalOf(in)
	if original == "" || in.Accepting != nil {
		return l.takeIn(in, l.t.StoreUnclaimed && in.To == nil)
	}
	l.stamp()
	for _, old := range l.invalidOnes() {
		old.setNewer(true)
	}
	return Answer{DuplicateOf: original}
}

// originalOf returns the webhook-id of the original if a webhook is a duplicate, and else an empty string. This is the
// whole rule:
//
//   - While webhooks wait in the lane, a copy of the tail is a duplicate, if the tail still waits.
//   - If none waits, a copy of the snapshot that the receiver holds for sure is a duplicate, if the same receiver
//     accepted it within the window.
//
// Anything else may be a change. In A, B, A the second A is not a duplicate.
func (l *Lane) originalOf(in *Incoming) string {
	if in.Snapshot && l.receiverHas(in.Digest, ReceiverName(in.To)) {
		return l.TailID
	}
	return ""
}

// receiverHas says whether a receiver holds exactly this snapshot, or will, when all waiting webhooks are delivered.
// While some wait the receiver says nothing: they go to whichever takes the lane then.
func (l *Lane) receiverHas(digest []byte, receiver string) bool {
	if l.t.DedupWindow == 0 {
		return false
	}
	if l.Waiting > 0 {
		return l.TailDigest != nil && bytes.Equal(l.TailDigest, digest)
	}
	// After a forced redelivery the receiver holds an older snapshot than the tail. Then a copy of that older one is a
	// change, which the sender made after the tail.
	holdsTail := l.Held != nil && l.HeldID == l.TailID && l.HeldBy == receiver
	age := time.Duration(l.t.Now-l.HeldAt) * time.Microsecond
	return holdsTail && bytes.Equal(l.Held, digest) && age.Abs() < l.t.DedupWindow
}

// takeIn puts a webhook at the end of the lane. With store it is stored, unless it must queue behind another one.
func (l *Lane) takeIn(in *Incoming, store bool) (a Answer) {
	l.setReceiver(in.To)
	stored := store && l.Parked == 0 && l.idle()
	if !stored {
		if err := l.t.Inbox.CheckRoom(l, in.Size); err != nil {
			return Answer{Err: err}
		}
	}
	w := *in.Webhook
	if stored {
		l.storeOnly(&w, in.Brings)
	} else {
		a = l.enqueue(&w, in)
	}
	a.ID, l.Erased = w.ID, 0
	if in.Snapshot {
		l.supersedeInvalid(in)
	}
	if in.Accepting != nil {
		l.move(in.Accepting, state.Replaced, fmt.Sprint("taken in as ", w.ID))
	}
	return a
}

// storeOnly takes a webhook in as stored: it is not delivered, and dedup goes by usher itself as its receiver.
func (l *Lane) storeOnly(w *Webhook, brings *snapshot.Stored) {
	l.add(w, state.Stored)
	l.setTail(w, brings)
	l.TailDigest = nil
	l.noteHeld(w, "")
}

// enqueue puts a webhook at the end of the lane, where it waits. If the lane was idle this process gets the lease, if it
// has room.
func (l *Lane) enqueue(w *Webhook, in *Incoming) (a Answer) {
	idle := l.idle()
	l.endExpiredLease()
	l.add(w, state.Waiting)
	l.setTail(w, in.Brings)
	l.TailDigest = w.dedupDigest()
	if !idle {
		return a // its backoff, its pause and its turn stay
	}
	l.WaitingSince = l.t.Now
	l.clearBackoff()
	l.release(l.t.Now)
	switch {
	case in.To == nil || l.Paused || in.Later:
	case l.t.Inbox.Reserve(in.To, w.Size):
		a.Lease = l.newLease(w, in.To)
	default:
		a.Unleased = true
	}
	return a
}

// setTail makes a new webhook the lane's tail and, if it brings one, its snapshot the tenant's.
func (l *Lane) setTail(w *Webhook, brings *snapshot.Stored) {
	l.Tail, l.TailID, l.changed = w.ID, w.UUID, true
	if brings != nil {
		s := *brings
		s.Seq, s.Received, s.Source = w.ID, w.Received, w.Source
		l.snapshot = &s
	}
}

// supersededWhy is the reason of every webhook that is superseded by another one that was taken in.
const supersededWhy = "a newer snapshot of the tenant has taken its place"

// supersedeInvalid supersedes the tenant's invalid webhooks: this snapshot is newer and complete. It leaves alone
// events of other types, whose content no snapshot has. If this webhook is an invalid one that somebody has accepted,
// it only supersedes those that were last received before it: the others are newer, and Newer does not hold for them.
func (l *Lane) supersedeInvalid(in *Incoming) {
	for _, old := range l.invalidOnes() {
		sameType := old.Type == in.Type || old.Type == ""
		isOlder := in.Accepting == nil || old.Rank < in.Accepting.Rank
		if sameType && isOlder {
			l.move(old, state.Superseded, "a newer snapshot of the tenant was taken in")
		} else if sameType {
			old.setNewer(false)
		}
	}
}

// supersedeParked is for a snapshot that has just been accepted or parked. It supersedes the parked snapshot that is
// older. If one that is newer is parked already, because somebody redelivered this one with force, this one is
// superseded instead, if it is parked. So a lane has one parked snapshot at most.
func (l *Lane) supersedeParked(w *Webhook) {
	others := l.Parked
	if w.State == state.Parked {
		others--
	}
	if !w.Snapshot || others == 0 {
		return
	}
	for _, p := range l.t.Inbox.ParkedSnapshots(l) {
		switch p = l.Load(p); {
		case p == w || p.State != state.Parked: // this transaction has moved it
		case p.ID < w.ID:
			l.move(p, state.Superseded, supersededWhy)
		case w.State == state.Parked:
			l.move(w, state.Superseded, supersededWhy)
		}
	}
}

// RecordInvalid stores a webhook that cannot be taken in, and returns it as it is stored. Of a copy of one that nobody
// has dealt with (known; may be nil) only the time is noted.
func (l *Lane) RecordInvalid(w *Webhook, known *Webhook) *Webhook {
	if known != nil && known.State == state.Invalid && !known.gone {
		known.Rank, known.Changed = l.stamp(), l.t.Time()
		known.Newer, known.changed = false, true
		return known
	}
	row := *w
	l.add(&row, state.Invalid)
	l.t.HasInvalid = true
	return &row
}

// CheckAccept says why an invalid webhook, in.Accepting, cannot be taken in. If its tenant has a newer snapshot, that
// needs force.
func (l *Lane) CheckAccept(in *Incoming, force bool) error {
	if in.Accepting == nil || in.Accepting.State != state.Invalid {
		return ErrNotInvalid
	}
	// A snapshot that was taken in after it, other than a copy, would have superseded it.
	newer := l.t.Inbox.LastSnapshot(l)
	if newer != nil && in.Accepting.Newer && in.Snapshot && !force {
		latest := &Webhook{ID: newer.Seq, UUID: newer.Webhook, Platform: l.Platform, Tenant: l.Tenant}
		return &OverwriteError{in.Accepting.ID, latest}
	}
	return nil
}
