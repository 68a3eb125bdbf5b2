package lane

import (
	"crypto/sha256"
	"time"

	"usher/internal/clock"
	"usher/webhookgate"
)

// Webhooks that got a 5xx may be lost. They count as missed until they come again, or something newer does.

// MissedSet returns the tenant's webhooks that are missed.
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
// here. For a reconcile that is something new of the tenant.
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
	if last := set.LastSnapshot(); last != nil && l.settles(set, last) {
		set = set.Except(func(m *webhookgate.MissedWebhook) bool { return m.Snapshot })
	}
	return set
}

// settles says whether the last snapshot that usher has settles those of a missed set.
func (l *Lane) settles(set webhookgate.MissedSet, last *webhookgate.MissedWebhook) bool {
	digest := l.t.Inbox.LastSnapshotDigest(l)
	switch {
	case l.receiverHas(last.Digest[:], NameOf(l.t.Receivers.For(l.Platform))):
		return true
	case digest == nil && l.Tail != 0 || l.StateAt > l.t.Now: // without a tail: the tenant was erased then
		return false
	case AsDigest(digest) == last.Digest:
		return l.StateAt >= last.At.UnixMicro()
	}
	// Another one must have come a second later, because the clocks of replicas and database differ.
	return set.SettlesSnapshots(AsDigest(digest), true, clock.Moment(l.StateAt-clock.Micros(MaxJump)))
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
		l.noteState(at)
	}
	if l.MissedSince > 0 {
		l.SetMissed(l.MissedSet().After(AsDigest(in.Digest), isState, clock.Moment(at)))
	}
}

// noteState notes when a state of the tenant arrived that usher knows. A time in the future is from before the
// database's clock was set back.
func (l *Lane) noteState(at int64) {
	if at > l.StateAt || l.StateAt > l.t.Now {
		l.StateAt, l.stamped = at, true
	}
}

// HasNewer says whether a newer and other state of the tenant was taken in than a webhook's, which arrived at this time
// or earlier.
func (l *Lane) HasNewer(in *Incoming, at int64) bool {
	isNewer := l.StateAt > at && l.StateAt <= l.t.Now
	return in.Snapshot && isNewer && !l.receiverHas(in.Digest, NameOf(in.To))
}

// clearMissed says that nothing is missed any more.
func (l *Lane) clearMissed() {
	if l.MissedSince > 0 {
		l.SetMissed(webhookgate.MissedSet{})
	}
}

// AsDigest returns a digest of a row; all zeros: it has none.
func AsDigest(b []byte) (digest [sha256.Size]byte) {
	copy(digest[:], b)
	return digest
}
