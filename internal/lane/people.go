package lane

import (
	"time"

	"usher/internal/clock"
	"usher/internal/lane/state"
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
		l.clearBackoff()
		l.reschedule()
		return nil
	case asked == state.Waiting && w.State == state.Superseded, asked.Open() && w.State == state.Delivered:
		// It was to be delivered when it was asked for, and was meanwhile; once more could overwrite a newer one.
		return nil
	case w.State == state.Stored && l.t.Receivers.For(w.Platform) == nil:
		return ErrStored
	case l.Tenant != "" && l.Tail > w.ID && !force:
		return &OverwriteError{w.ID, l.tailWebhook()}
	case w.State != state.Parked:
		if err := l.t.Inbox.CheckRoom(l, w.Size); err != nil {
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
		l.TailDigest = w.dedupDigest()
	case l.Owner != nil && l.LeasedID == l.Tail:
		// The tail is being delivered, and this one comes after it. So a copy of the tail is a change again.
		l.TailDigest = nil
	}
	if wasEmpty {
		l.WaitingSince = l.t.Now
	}
	if !l.leased() {
		l.UpdateReceiver() // it may have been stored, and have a receiver now
		l.clearBackoff()
		l.release(l.t.Now)
	}
	return nil
}

// tailWebhook returns what the lane's row knows about its tail.
func (l *Lane) tailWebhook() *Webhook {
	return &Webhook{ID: l.Tail, UUID: l.TailID, Platform: l.Platform, Tenant: l.Tenant}
}

const byHand = "discarded by hand"

// Discard gives up a webhook that waits, is parked or is invalid. It stays in the history.
func (l *Lane) Discard(w *Webhook) error {
	l.endExpiredLease()
	switch {
	case w.State.Finished():
		return ErrFinished
	case w.State == state.Invalid:
		l.move(w, state.Discarded, byHand)
		return nil
	case l.leased() && l.LeasedID == w.ID:
		return ErrBusy
	}
	wasFirst := w.State == state.Waiting && l.First() == w
	l.move(w, state.Discarded, byHand)
	if wasFirst && !l.leased() {
		l.updateWaitingSince()
		l.clearBackoff()
		l.release(l.t.Now)
	}
	return nil
}

// SetPaused holds the lane's deliveries back, or not any more.
func (l *Lane) SetPaused(yes bool) {
	if l.Paused != yes {
		l.Paused, l.changed = yes, true
		l.reschedule()
	}
}

// eraseDelay is how long no delivery of a lane begins while an erasure waits for the current one.
const eraseDelay = 15 * time.Second

// Erase deletes everything about the tenant, and returns how many webhooks that were. Only the lane's row stays, with
// the number of the erasure. While one is being delivered it returns ErrBusy, and no other delivery begins for a while.
func (l *Lane) Erase() (count int, err error) {
	if l.leased() {
		// The action is tried again until the lease has ended. Meanwhile its holder must not continue with the lane's
		// next webhook.
		until := l.t.Now + clock.Micros(eraseDelay)
		if l.NotBefore < until-clock.Micros(eraseDelay/2) {
			l.NotBefore, l.changed = until, true
		}
		return 0, ErrBusy
	}
	for _, w := range l.webhooks {
		if w.isNew && !w.gone {
			count++
		}
		w.gone = true // the turn may know it elsewhere, too
	}
	count += l.t.Inbox.EraseTenant(l)
	l.t.AddedBytes[l.ReceiverName] -= l.Bytes
	erased := New(l.LaneName)
	erased.ReceiverName, erased.Paused = l.ReceiverName, l.Paused
	erased.Token = l.Token // an outcome that is late must not fit a new lease
	erased.t, erased.changed = l.t, true
	*l = *erased
	l.Erased = l.t.Now
	l.stamp()
	return count, nil
}
