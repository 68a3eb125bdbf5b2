package lane

import (
	"time"

	"usher/internal/clock"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
)

// Redeliver puts a webhook back into the lane, in the place of its number: ahead of all that came after it. One that
// waits is tried at once. asked is its state when somebody asked for it, or chose it: what was done meanwhile is not
// done again, and is no error.
func (l *Lane) Redeliver(w *Webhook, asked state.State, force bool) error {
	l.endExpiredLease()
	switch {
	case l.leased() && l.LeasedID == w.ID:
		return ErrBusy
	case w.State == state.Waiting:
		l.tryNow()
		return nil
	case asked == state.Waiting && w.State == state.Superseded, asked.Open() && w.State == state.Delivered:
		// It was to be delivered when it was asked for, and was meanwhile; once more could overwrite a newer one.
		return nil
	case w.State == state.Stored && l.t.Receivers.For(w.Platform) == nil:
		return ErrStored
	case l.Tenant != "" && l.Tail > w.ID && !force:
		return &OverwriteError{w.ID, l.tailWebhook()}
	}
	l.setReceiver(l.t.Receivers.For(l.Platform)) // it may have been stored, and have a receiver now
	if w.State != state.Parked {
		if err := l.checkRoom(w.Size); err != nil {
			return err
		}
	}
	wasEmpty := l.Waiting == 0
	l.leaveState(w)
	w.Record = Record{Tried: w.Tried, Redelivered: l.t.Time(), Forced: force && l.Tail > w.ID}
	l.enterState(w, state.Waiting, "")
	w.changed = true
	switch {
	case l.Tail == w.ID:
		l.TailDigest, l.HeldAt = w.dedupDigest(), 0
	case l.leased() && l.LeasedID == l.Tail:
		// The tail is being delivered, and this one comes after it. So a copy of the tail is a change again.
		l.TailDigest = nil
	}
	if wasEmpty {
		l.WaitingSince = l.t.Now
	}
	l.tryNow()
	return nil
}

// tryNow makes the lane due, unless somebody delivers it.
func (l *Lane) tryNow() {
	if !l.leased() {
		l.clearBackoff()
		l.release(l.t.Now)
	}
}

const byHand = "discarded by hand"

// Discard gives up a webhook that waits, is parked or is invalid. It stays in the history.
func (l *Lane) Discard(w *Webhook) error {
	l.endExpiredLease()
	switch {
	case w.State.Finished():
		return ErrFinished
	case l.leased() && l.LeasedID == w.ID:
		return ErrBusy
	}
	wasFirst := w.State == state.Waiting && l.next() == w
	l.move(w, state.Discarded, byHand)
	if wasFirst {
		l.tryNow()
	}
	return nil
}

// Expire discards an invalid webhook that nobody has dealt with for too long, and says whether it still was one.
func (l *Lane) Expire(w *Webhook) bool {
	if w.State != state.Invalid {
		return false
	}
	l.move(w, state.Discarded, "nobody has dealt with it")
	return true
}

// eraseDelay is how long no delivery of a lane begins while an erasure waits for the current one.
const eraseDelay = 15 * time.Second

// Erase deletes everything about the tenant. Only the lane's row stays, and that it was erased, with the number of the
// erasure. While one is being delivered it returns ErrBusy, and no other delivery begins for a while.
func (l *Lane) Erase() error {
	if l.leased() {
		// The action is tried again until the lease has ended. Meanwhile its holder must not continue with the lane's
		// next webhook.
		until := l.t.Now + clock.Micros(eraseDelay)
		if l.NotBefore < until-clock.Micros(eraseDelay/2) {
			l.NotBefore, l.changed = until, true
		}
		return ErrBusy
	}
	l.t.AddedBytes[l.ReceiverName] -= l.Bytes
	erased := New(l.LaneName)
	erased.ReceiverName = l.ReceiverName
	erased.Token = l.Token // an outcome that is late must not fit a new lease
	erased.t, erased.erases = l.t, true
	*l = *erased
	l.Erased = l.t.Now
	l.snapshot = &snapshot.Stored{Platform: l.Platform, Tenant: l.Tenant, Seq: l.stamp(), Received: l.t.Time(), Erased: true}
	return nil
}
