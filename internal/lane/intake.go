package lane

import (
	"bytes"
	"fmt"
	"time"

	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// An Incoming webhook is one that is to be taken in.
type Incoming struct {
	*Webhook // as the row that it becomes; the lane takes a copy

	To        *receiver.Receiver // nil: no receiver takes it
	Brings    *snapshot.Stored   // the tenant's new snapshot; nil: the webhook is none
	Accepting *Webhook           // the invalid webhook that somebody accepts: so it is no duplicate
}

// An Answer says what was done with a webhook.
type Answer struct {
	DuplicateOf string   // the webhook-id of the original; empty: it is no duplicate, and was taken in
	Taken       *Webhook // the row that it has become; nil: it is a duplicate
}

// Receive takes a webhook in, unless it is a duplicate: then it answers with the webhook-id of the original.
func (l *Lane) Receive(in *Incoming) (Answer, error) {
	original := l.originalOf(in)
	if original == "" || in.Accepting != nil {
		return l.takeIn(in, l.t.StoreUnclaimed && in.To == nil)
	}
	l.supersedeInvalid(in.Type, l.stamp())
	return Answer{DuplicateOf: original}, nil
}

// originalOf returns the webhook-id of the original if a webhook is a duplicate, and else an empty string. This is the
// whole rule:
//
//   - While webhooks wait in the lane, a copy of the tail is a duplicate, if the tail still waits.
//   - If none waits, a copy of the tail is a duplicate if the receiver has accepted it within the window, and was sent
//     nothing else since.
//
// Anything else may be a change. In A, B, A the second A is not a duplicate.
func (l *Lane) originalOf(in *Incoming) string {
	isCopy := in.Snapshot && l.t.DedupWindow > 0 && l.TailDigest != nil && bytes.Equal(l.TailDigest, in.Digest)
	age := time.Duration(l.t.Now-l.HeldAt) * time.Microsecond
	switch {
	case !isCopy:
	case l.Waiting > 0 && l.HeldAt == 0:
		return l.TailID
	case l.Waiting == 0 && l.HeldAt != 0 && l.ReceiverName == ReceiverName(in.To) && age.Abs() < l.t.DedupWindow:
		return l.TailID
	}
	return ""
}

// takeIn puts a webhook at the end of the lane. With store it is stored, unless it must queue behind another one.
func (l *Lane) takeIn(in *Incoming, store bool) (Answer, error) {
	l.endExpiredLease()
	l.setReceiver(in.To)
	stored := store && l.Parked+l.Waiting == 0
	if !stored {
		if err := l.checkRoom(in.Size); err != nil {
			return Answer{}, err
		}
	}
	row := *in.Webhook
	w := &row
	wasEmpty := l.Waiting == 0
	if stored {
		l.add(w, state.Stored)
	} else {
		l.add(w, state.Waiting)
	}
	l.Tail, l.TailID, l.TailDigest, l.HeldAt, l.Erased = w.ID, w.UUID, w.dedupDigest(), 0, 0
	if in.Brings != nil {
		s := *in.Brings
		s.Seq, s.Received, s.Source = w.ID, w.Received, w.Source
		l.snapshot = &s
	}
	switch {
	case stored && in.To == nil:
		l.HeldAt = l.t.Now // by usher itself
	case stored:
		l.TailDigest = nil // nobody knows whether the receiver has it
	case wasEmpty:
		l.WaitingSince = l.t.Now
		l.clearBackoff()
		l.release(l.t.Now)
	}
	if in.Accepting != nil && in.Snapshot { // those that came after it are newer
		l.supersedeInvalid(in.Type, in.Accepting.Rank)
	} else if in.Snapshot {
		l.supersedeInvalid(in.Type, w.ID)
	}
	if in.Accepting != nil {
		l.move(in.Accepting, state.Replaced, fmt.Sprint("taken in as ", w.ID))
	}
	return Answer{Taken: w}, nil
}

// checkRoom returns a NoRoom if the lane's receiver has no room for one more webhook.
func (l *Lane) checkRoom(size int64) error {
	if l.t.Used[l.ReceiverName]+l.t.AddedBytes[l.ReceiverName]+size > l.t.MaxBytes {
		return &NoRoom{l.ReceiverName, size}
	}
	return nil
}

// RecordInvalid stores a webhook that cannot be taken in, and returns it as it is stored. Of a copy of one that nobody
// has dealt with (known; may be nil) only the time is noted.
func (l *Lane) RecordInvalid(w *Webhook, known *Webhook) *Webhook {
	if known != nil && known.State == state.Invalid && l.Loaded(known.ID) == known {
		known.Rank, known.Changed, known.changed = l.stamp(), l.t.Time(), true
		return known
	}
	row := *w
	l.add(&row, state.Invalid)
	l.t.HasInvalid = true
	return &row
}

// CheckAccept says why an invalid webhook, in.Accepting, cannot be taken in. If its tenant has a newer snapshot, that
// needs force. known is the tenant's last snapshot; nil: there is none.
func (l *Lane) CheckAccept(in *Incoming, known *snapshot.Stored, force bool) error {
	switch old := in.Accepting; {
	case old == nil:
		return ErrNotInvalid
	case old.State == state.Superseded && old.Rejected() && !force && known != nil:
		return &OverwriteError{old.ID, &Webhook{ID: known.Seq, UUID: known.Webhook, Platform: l.Platform, Tenant: l.Tenant}}
	case old.State != state.Invalid && !(old.State == state.Superseded && old.Rejected()):
		return ErrNotInvalid
	}
	return nil
}

// tailWebhook returns what the lane's row knows about its tail.
func (l *Lane) tailWebhook() *Webhook {
	return &Webhook{ID: l.Tail, UUID: l.TailID, Platform: l.Platform, Tenant: l.Tenant}
}

// A NoRoom says that a receiver has no room for a webhook. It is a webhookgate.ErrFull.
type NoRoom struct {
	Receiver string // empty: no receiver takes it
	Size     int64  // the webhook's
}

func (n *NoRoom) Error() string {
	if n.Receiver == "" {
		return webhookgate.ErrFull.Error() + " for platforms without a receiver"
	}
	return webhookgate.ErrFull.Error() + fmt.Sprintf(" for the receiver %q", n.Receiver)
}

func (n *NoRoom) Unwrap() error { return webhookgate.ErrFull }
