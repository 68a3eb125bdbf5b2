package lane

import (
	"crypto/sha256"
	"time"

	"usher/internal/clock"
	"usher/webhookgate"
)

// Webhooks that got a 5xx may be lost. They count as missed until they come again, or something newer does.

// MissedSet returns the tenant's webhooks that are missed. It may ask the inbox.
func (l *Lane) MissedSet() webhookgate.MissedSet {
	if l.MissedSince > 0 && !l.knowsMissed {
		l.LoadMissed(l.t.Inbox.MissedWebhooks(l))
	}
	return l.missed
}

// LoadMissed gives the lane its rows of missed webhooks.
func (l *Lane) LoadMissed(all []webhookgate.MissedWebhook) {
	l.missed = webhookgate.MissedSet{Since: clock.Moment(l.MissedSince), Webhooks: all}
	l.knowsMissed = true
}

// SetMissed replaces the missed webhooks.
func (l *Lane) SetMissed(set webhookgate.MissedSet) {
	l.missed, l.knowsMissed = set, true
	l.savesMissed, l.changed = true, true
	if l.MissedSince = 0; len(set.Webhooks) > 0 {
		l.MissedSince = max(1, set.Since.UnixMicro())
	}
}

// AddMissed notes webhooks of the tenant that got a 5xx, but for those that were settled before they could be noted
// here. It stamps the lane: a reconcile that began before leaves this tenant alone.
func (l *Lane) AddMissed(set webhookgate.MissedSet) {
	if set = l.stillMissed(set); len(set.Webhooks) > 0 {
		l.SetMissed(l.MissedSet().With(set))
		l.stamp()
	}
}

// stillMissed returns what is still missed of webhooks that got a 5xx: they may be stored after all, or the tenant may
// have sent them again, or newer ones.
func (l *Lane) stillMissed(set webhookgate.MissedSet) webhookgate.MissedSet {
	set = set.Except(func(m *webhookgate.MissedWebhook) bool { return l.t.Inbox.CameAfterAll(l, m) })
	if last := set.LastSnapshot(); last != nil && l.snapshotsSettled(set, last) {
		set = set.Except(func(m *webhookgate.MissedWebhook) bool { return m.Snapshot })
	}
	return set
}

// snapshotsSettled says whether the last snapshot that usher has settles those of a missed set: it is the last of
// these, or a newer one.
func (l *Lane) snapshotsSettled(set webhookgate.MissedSet, last *webhookgate.MissedWebhook) bool {
	digest := l.t.Inbox.LastSnapshotDigest(l)
	switch {
	case l.receiverHas(last.Digest[:], ReceiverName(l.t.Receivers.For(l.Platform))):
		return true
	case digest == nil && l.Tail != 0 || l.SnapshotAt > l.t.Now: // without a tail: the tenant was erased then
		return false // nobody can say
	case AsDigest(digest) == last.Digest: // it may have come before, too
		return l.SnapshotAt >= last.At.UnixMicro()
	}
	// Another one must have come a second later, because the clocks of replicas and database differ.
	return set.SettlesSnapshots(AsDigest(digest), true, clock.Moment(l.SnapshotAt-clock.Micros(MaxJump)))
}

// MaxJump is by how much the clocks of replicas and database may differ, or jump, without anything following from it.
const MaxJump = time.Second

// noteReceived notes that a webhook was taken in, or is a copy of one that was. That may settle what was missed. For
// again see Answer.SeenBefore.
func (l *Lane) noteReceived(in *Incoming, again bool) {
	at := in.Arrived
	if in.Accepting != nil {
		at = in.Accepting.Changed.UnixMicro() // what got a 5xx since then is newer
	}
	if at == 0 {
		return
	}
	isState := in.Snapshot && !again
	if isState {
		l.noteSnapshotAt(at)
	}
	if l.MissedSince > 0 {
		l.SetMissed(l.MissedSet().After(AsDigest(in.Digest), isState, clock.Moment(at)))
	}
}

// noteSnapshotAt notes when a snapshot of the tenant arrived that usher knows. A time in the future is from before the
// database's clock was set back.
func (l *Lane) noteSnapshotAt(at int64) {
	if at > l.SnapshotAt || l.SnapshotAt > l.t.Now {
		l.SnapshotAt, l.stamped = at, true
	}
}

// HasNewer says whether a snapshot that arrived later than that was taken in, and is not the same as the webhook's.
func (l *Lane) HasNewer(in *Incoming, at int64) bool {
	isNewer := l.SnapshotAt > at && l.SnapshotAt <= l.t.Now
	return in.Snapshot && isNewer && !l.receiverHas(in.Digest, ReceiverName(in.To))
}

// clearMissed says that nothing is missed any more.
func (l *Lane) clearMissed() {
	if l.MissedSince > 0 {
		l.SetMissed(webhookgate.MissedSet{})
	}
}

// AsDigest converts a digest from how a row has it; all zeros: there is none.
func AsDigest(b []byte) (digest [sha256.Size]byte) {
	copy(digest[:], b)
	return digest
}
