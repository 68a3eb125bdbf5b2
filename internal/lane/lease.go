package lane

import (
	"bytes"
	"math"
	"time"

	"usher/internal/clock"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// A Lease is the permission to deliver one webhook, the first of its lane. While it lasts no other process delivers that
// lane. The outcome of the delivery ends it.
//
// In the database a lease is the lane's owner, its token, and its due time, at which the lease ends by itself.
type Lease struct {
	Webhook  *Webhook
	Receiver *receiver.Receiver
	Failed   bool // the last try of this webhook failed

	LaneName   webhookgate.LaneName // that it is for
	Token      int64
	validUntil time.Time // by our own clock
	beginsBy   time.Time // the latest time at which a whole try fits
}

// Key returns which lease it is.
func (lease *Lease) Key() LeaseKey { return LeaseKey{lease.LaneName, lease.Token} }

// Valid says whether the lease still lasts. It must be asked right before each write to the receiver: the process may
// have been stopped for any time since it was last asked, without noticing.
func (lease *Lease) Valid() bool { return isBefore(lease.ValidUntil()) }

// MayBegin says whether the lease lasts for a whole try.
func (lease *Lease) MayBegin() bool { return isBefore(lease.beginsBy) }

// isBefore asks both clocks: the monotonic one stands still while a machine sleeps, and the wall clock can be set back.
func isBefore(until time.Time) bool {
	now := time.Now()
	return now.Before(until) && now.Round(0).Before(until.Round(0))
}

// ValidUntil is when the lease ends.
func (lease *Lease) ValidUntil() time.Time { return lease.validUntil }

// defaultLeaseExtra is how much longer than the receiver's timeout a lease lasts. Its holder stops a fifth of that earlier,
// because the clocks of the holder and of the database may run at different speeds, and a request takes some time to reach
// a receiver.
const defaultLeaseExtra = 10 * time.Second

// LongestLease is how long a lease lasts at most.
func (r *Rules) LongestLease() (longest time.Duration) {
	for _, rc := range r.Receivers.All() {
		longest = max(longest, r.leaseTime(rc))
	}
	return longest
}

func (r *Rules) leaseTime(rc *receiver.Receiver) time.Duration { return rc.Timeout + r.leaseExtra() }

func (r *Rules) leaseExtra() time.Duration {
	if r.LeaseExtra > 0 {
		return r.LeaseExtra
	}
	return defaultLeaseExtra
}

// setReceiver notes which receiver takes the lane's webhooks, unless somebody is delivering one. What another one holds,
// has failed to do, or has asked for, does not count any more.
func (l *Lane) setReceiver(rc *receiver.Receiver) {
	if ReceiverName(rc) == l.ReceiverName || l.leased() {
		return
	}
	l.t.AddedBytes[l.ReceiverName] -= l.Bytes
	l.ReceiverName, l.FailingSince, l.changed = ReceiverName(rc), 0, true
	l.t.AddedBytes[l.ReceiverName] += l.Bytes
	if l.HeldAt != 0 {
		l.HeldAt, l.TailDigest = 0, nil
	}
	l.clearBackoff()
	l.release(l.t.Now)
}

// Ready says whether the lane may be delivered now to the receiver that the settings say; if they say another one than
// before, it notes that. waits: a webhook waits that is not in memory, so that only a claim can deliver it.
func (l *Lane) Ready() (rc *receiver.Receiver, waits bool) {
	if l.leased() || l.Waiting == 0 || l.t.Receivers == nil {
		return nil, false
	}
	l.endExpiredLease()
	rc = l.t.Receivers.For(l.Platform)
	l.setReceiver(rc)
	if rc == nil || l.Due > l.t.Now && !(l.Failures == 0 && l.NotBefore <= l.t.Now) {
		return nil, false
	}
	return rc, l.next() == nil
}

// Postpone is for a lane whose first webhook cannot be read: somebody has to look, and others must not wait for it.
func (l *Lane) Postpone() {
	l.NotBefore = l.t.Now + clock.Micros(MaxBackoff)
	l.release(l.t.Now)
}

// Lease gives this process a lease for the lane's first webhook, which is in memory. From here on nobody knows what the
// receiver holds, since a try may succeed without an answer. Only a 2xx says it again.
func (l *Lane) Lease(rc *receiver.Receiver) *Lease {
	w := l.next()
	if l.HeldAt != 0 {
		l.HeldAt, l.TailDigest = 0, nil
	}
	l.Token++
	l.Owner, l.LeasedID, l.changed = l.t.Owner, w.ID, true
	l.Due = l.t.Now + clock.Micros(l.t.leaseTime(rc))
	l.WaitingSince = w.AgeFrom().UnixMicro()
	lease := &Lease{Webhook: w, Receiver: rc, Failed: l.Failures > 0, LaneName: l.LaneName, Token: l.Token}
	until := l.t.AskedAt.Add(l.t.leaseTime(rc) - l.t.leaseExtra()/5)
	lease.validUntil = until
	lease.beginsBy = until.Add(-rc.Timeout)
	return lease
}

// leased says whether a process has a valid lease for the lane, and may be delivering it. After the clock has jumped
// every lease counts as valid for a while. One of this process does until its outcome is written: after an outage of
// the database that may be later than its end, and what was accepted meanwhile must not be delivered again.
func (l *Lane) leased() bool {
	ours := bytes.Equal(l.Owner, l.t.Owner)
	lasts := l.Due > l.t.Now || !l.t.MayTakeOver
	return l.Owner != nil && (lasts || ours && l.t.Delivering[LeaseKey{l.LaneName, l.Token}])
}

// endExpiredLease takes the lane from an owner whose lease has ended. What changes the webhook which that owner was
// delivering must call it first, so that a late outcome no longer matches the row.
func (l *Lane) endExpiredLease() {
	if l.Owner != nil && !l.leased() {
		if l.Loaded(l.LeasedID) == nil {
			l.frontier = math.MinInt64 // what it delivered comes first, and is not in memory
		}
		l.release(l.t.Now)
	}
}

// owns says whether this process still has this lease. If not, the lease has ended, and another process may have the
// lane.
func (l *Lane) owns(lease *Lease) bool {
	return bytes.Equal(l.Owner, l.t.Owner) && l.Token == lease.Token && l.LeasedID == lease.Webhook.ID
}
