package lane

import (
	"math"
	"time"
	"usher/internal/clock"
)

// tailWebhook returns what the lane's row knows about its tail.
func (l *Lane) tailWebhook() *Webhook {
	return &Webhook{ID: l.Tail, UUID: l.TailID, Platform: l.Platform, Tenant: l.Tenant}
}

// eraseHold is how long no delivery of a lane begins while an erasure waits for the current one.
const eraseHold = 15 * time.Second

// redeliver puts a webhook back into the lane, in the place of its number: ahead of all that came after it. asked is its state when somebody asked for
// it, or chose it.
func (l *Lane) Redeliver(h *Webhook, asked State, force bool) error {
	t := l.t
	l.endExpiredLease()
	switch {
	case l.leased() && l.LeasedID == h.ID:
		return ErrBusy
	case h.State == Waiting:
		l.clearBackoff()
		l.reschedule()
		return nil
	case asked == Waiting && h.State == Superseded, asked.Open() && h.State == Delivered:
		return nil // it was to be delivered when it was asked for, and was meanwhile; once more could overwrite a newer one
	case h.State == Stored && t.Receivers.For(h.Platform) == nil:
		return ErrStored
	case l.Tenant != "" && l.Tail > h.ID && !force:
		return &OverwriteError{h.ID, l.tailWebhook()}
	case h.State != Parked:
		if err := t.Inbox.HasRoom(l, h.Size); err != nil {
			return err
		}
	}
	idle := l.Waiting == 0
	l.leaveState(h)
	h.Record = Record{Tried: h.Tried, Again: t.Time(), Forced: force && l.Tail > h.ID}
	l.enterState(h, Waiting, "")
	h.changed = true
	l.Held = nil
	switch {
	case l.Tail == h.ID:
		l.TailDigest = dedupDigest(h)
	case l.Owner != nil && l.LeasedID == l.Tail:
		// The tail is being delivered, and this one comes after it. So a copy of the tail is a change again.
		l.TailDigest = nil
	}
	if idle {
		l.WaitingSince = t.Now
	}
	if !l.leased() {
		l.UpdateReceiver() // it may have been stored, and have a receiver now
		l.clearBackoff()
		l.release(t.Now)
	}
	return nil
}

// discard does nothing more with a webhook.
func (l *Lane) Discard(h *Webhook) error {
	l.endExpiredLease()
	switch {
	case h.State.Finished():
		return ErrFinished
	case h.State == Invalid:
		l.move(h, Discarded, byHand)
		return nil
	case l.leased() && l.LeasedID == h.ID:
		return ErrBusy
	}
	wasFirst := h.State == Waiting && l.First() == h
	l.move(h, Discarded, byHand)
	l.Held = nil // the receiver may have accepted it in a try whose answer got lost
	if wasFirst && !l.leased() {
		l.updateWaitingSince()
		l.clearBackoff()
		l.release(l.t.Now)
	}
	return nil
}

const byHand = "discarded by hand"

// pause holds the lane back, or not.
func (l *Lane) Pause(yes bool) {
	if l.Paused != yes {
		l.Paused, l.changed = yes, true
		l.reschedule()
	}
}

// forget drops what dedup compares with, and says whether there was anything.
func (l *Lane) Forget() bool {
	l.t.Inbox.ForgetIDs(l)
	l.seen, l.newSeen = nil, nil
	missed := l.MissedSince > 0
	l.clearMissed()
	return l.forgetCopies() || missed
}

// erase deletes everything.
func (l *Lane) Erase() (count int, err error) {
	t := l.t
	if l.leased() {
		// The action is tried again until the lease has ended. Meanwhile its holder must not continue with the lane's next webhook.
		if until := t.Now + clock.Micros(eraseHold); l.NotBefore < until-clock.Micros(eraseHold/2) {
			l.NotBefore, l.changed = until, true
		}
		return 0, ErrBusy
	}
	l.Forget()
	for _, h := range l.hooks {
		if h.isNew && !h.gone {
			count++
		}
		h.gone = true // the turn may know it elsewhere, too
	}
	count += t.Inbox.EraseWebhooks(l)
	t.AddedBytes[l.ReceiverName] -= l.Bytes
	l.hooks, l.deleted, l.inMemory.snapshot, l.frontier, l.hasInvalid = nil, nil, nil, math.MinInt64, false
	l.Waiting, l.Parked, l.Invalid, l.Bytes = 0, 0, 0, 0
	l.Tail, l.TailID, l.FailingSince = 0, "", 0
	l.noteState(t.Now) // what came before it counts as older than what comes
	l.stamp()
	l.clearBackoff()
	l.release(t.Now)
	return count, nil
}
