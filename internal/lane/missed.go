package lane

import (
	"time"

	"usher/internal/clock"
	"usher/webhookgate"
)

// Webhooks that got a 5xx may be lost. They count as missed until they come again, or something newer does.

// setMissed replaces what is missed of the tenant.
func (l *Lane) setMissed(set webhookgate.MissedSet) {
	if len(l.Missed)+len(set) > 0 {
		l.Missed, l.changed = set, true
	}
}

// missedWithFutureAt returns what is missed of the tenant. What seems to have arrived in the future did so before the
// database's clock was set back: it counts as if it had arrived at that time.
func (l *Lane) missedWithFutureAt(at time.Time) webhookgate.MissedSet {
	return l.Missed.MapTimes(func(arrived time.Time) time.Time {
		if arrived.After(l.t.Time()) {
			return at
		}
		return arrived
	})
}

// AddMissed notes webhooks of the tenant that got a 5xx, but for those that were settled before they could be noted
// here: they may be stored after all, or the tenant may have sent them again, or newer ones. It stamps the lane: a
// reconcile that began before leaves this tenant alone.
func (l *Lane) AddMissed(set webhookgate.MissedSet) {
	set = set.Except(func(m webhookgate.MissedWebhook) bool { return l.t.Inbox.ArrivedAnyway(l, m) })
	if last := set.LastSnapshot(); last != nil {
		set = l.stillMissed(set, last)
	}
	if len(set) == 0 {
		return
	}
	l.setMissed(l.missedWithFutureAt(set.Since()).Add(set...))
	l.stamp()
}

// stillMissed returns what is still missed after the last snapshot of the tenant that usher has.
func (l *Lane) stillMissed(set webhookgate.MissedSet, last *webhookgate.MissedWebhook) webhookgate.MissedSet {
	at := clock.Moment(l.SnapshotAt)
	switch {
	case l.receiverHas(last.Digest, ReceiverName(l.t.Receivers.For(l.Platform))):
		return set.AfterIntake(last.Digest, true, last.At)
	case at.Before(last.At):
		return set
	}
	digest := l.t.Inbox.LastSnapshotDigest(l)
	if digest == nil && l.Tail != 0 || l.SnapshotAt > l.t.Now { // without a tail: the tenant was erased then
		return set // nobody can say
	}
	// Another one must have come a second later, because the clocks of replicas and database differ.
	return set.AfterIntake(digest, true, at.Add(-MaxJump))
}

// MaxJump is by how much the clocks of replicas and database may differ, or jump, without anything following from it.
const MaxJump = time.Second

// noteReceived notes that a webhook was taken in, or is a copy of the last one. That may settle what was missed.
func (l *Lane) noteReceived(in *Incoming) {
	at := in.Arrived
	if in.Accepting != nil {
		at = in.Accepting.Changed.UnixMicro() // what got a 5xx since then is newer
	}
	if at == 0 {
		return
	}
	if in.Snapshot {
		l.noteSnapshotAt(at)
	}
	l.setMissed(l.missedWithFutureAt(clock.Moment(at-1)).AfterIntake(in.Digest, in.Snapshot, clock.Moment(at)))
}

// noteSnapshotAt notes when a snapshot of the tenant arrived that usher knows. A time in the future is from before the
// database's clock was set back.
func (l *Lane) noteSnapshotAt(at int64) {
	if at > l.SnapshotAt || l.SnapshotAt > l.t.Now {
		l.SnapshotAt, l.stamped = at, true
	}
}
