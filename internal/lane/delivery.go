package lane

import (
	"bytes"
	"math"
	"net/http"
	"sync/atomic"
	"time"
	"usher/internal/clock"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// leased says whether a process has a valid lease for the lane, and may be delivering it. After the clock has jumped every lease
// counts as valid for a while. One of this process does until its outcome is written: after an outage of the database that may be later
// than its end, and what was accepted meanwhile must not be delivered again.
func (l *Lane) leased() bool {
	ours := bytes.Equal(l.Owner, l.t.Owner)
	if l.t.Alone {
		return ours
	}
	return l.Owner != nil && (l.Due > l.t.Now || !l.t.MayTakeOver || ours && l.t.Inbox.Delivers(l.LaneName, l.Token))
}

// endExpiredLease takes the lane from an owner whose lease has ended. What changes the webhook which that owner was
// delivering must call it first, so that a late outcome no longer matches the row.
func (l *Lane) endExpiredLease() {
	if l.Owner != nil && !l.leased() {
		l.release(l.t.Now)
		l.frontier = math.MinInt64 // what it delivered may not be in memory
	}
}

// lease gives this process a lease for the lane, to deliver h, which is its first webhook.
func (l *Lane) newLease(h *Webhook, rc *receiver.Receiver) *Lease {
	l.Owner, l.LeasedID, l.Due, l.changed = l.t.Owner, h.ID, l.t.Now+clock.Micros(l.t.LeaseTime), true
	l.Token++
	lease := &Lease{Webhook: h, Receiver: rc, LastTryFailed: l.LastResult != LastOK, FailedBefore: l.FailingSince != 0, Lane: l.LaneName, LastTry: l.LastTry, Token: l.Token}
	lease.Extend(l.t.LeaseEnd())
	return lease
}

// claim gives this process a lease for the lane, if nobody has one and a webhook waits. If the settings say now that another receiver
// takes the lane, it notes that instead.
func (l *Lane) Claim(rc *receiver.Receiver) *Lease {
	if l.leased() {
		return nil
	}
	l.endExpiredLease()
	if l.UpdateReceiver(); l.ReceiverName != rc.Name {
		return nil
	}
	h := l.First()
	if h == nil && !l.Paused { // its row says something else than its webhooks, and it would be claimed for ever
		l.Recount()
		h = l.First()
	}
	if l.Paused || h == nil {
		l.release(l.t.Now)
		return nil
	}
	return l.newLease(h, rc)
}

// route notes which receiver takes the lane's webhooks, by the settings of now.
func (l *Lane) UpdateReceiver() {
	if l.t.Receivers != nil { // else this process delivers nothing, and does not know
		l.setReceiver(l.t.Receivers.For(l.Platform))
	}
}

// goTo notes the lane's receiver. What another one has failed to do, or asked for, does not count any more.
func (l *Lane) setReceiver(rc *receiver.Receiver) {
	if NameOf(rc) == l.ReceiverName || l.leased() {
		return
	}
	l.endExpiredLease()
	l.t.AddedBytes[l.ReceiverName] -= l.Bytes
	l.ReceiverName, l.FailingSince, l.changed = NameOf(rc), 0, true
	l.t.AddedBytes[l.ReceiverName] += l.Bytes
	l.clearBackoff()
	l.release(l.t.Now)
}

// holds says whether this process still has this lease. If not, the lease has ended, and another process may have the lane.
func (l *Lane) holds(lease *Lease) bool {
	return l != nil && bytes.Equal(l.Owner, l.t.Owner) && l.Token == lease.Token && l.LeasedID == lease.Webhook.ID
}

// renew lets a lease last longer.
func (l *Lane) Renew(lease *Lease) bool {
	if !l.holds(lease) {
		return false
	}
	l.Due, l.changed = l.t.Now+clock.Micros(l.t.LeaseTime), true
	return true
}

// A settlement is what came of a try.
type TryResult struct {
	LeaseLost bool      // the lease had ended, and nothing was written
	Tried     Webhook   // the webhook as it is now
	NextLease *Lease    // the same lease, for the lane's next webhook; nil: the lease has ended
	NextTry   time.Time // when a webhook that was not accepted is tried again
	LaneReady bool      // webhooks wait in the lane, and any process may lease it now
}

// settle moves the webhook that was tried into its next state, and then continues the lease with the lane's next webhook, or ends it.
func (l *Lane) AfterTry(o *Outcome) (s TryResult) {
	if !l.holds(o.Lease) {
		return TryResult{LeaseLost: true}
	}
	t := l.t
	h := l.Load(o.Lease.Webhook.Row())
	defer func() { s.Tried, s.LaneReady = *h, l.Waiting > 0 && l.Owner == nil && l.Due <= t.Now }()
	if o.Aborted {
		at := t.Now + clock.Micros(o.RetryIn)
		if o.Lease.GivenBack {
			at = min(t.Now, l.WaitingSince) // it keeps its turn
		}
		l.release(at)
		return s
	}
	if o.ContentErr == nil {
		began := t.Time().Add(-time.Since(o.Began))
		h.noteTry(began, o.Took, o.Try)
		h.Receiver, h.changed = o.Lease.Receiver.Name, true
		l.LastTry = began.UnixMicro()
		if o.Counts {
			h.Counted++
		}
		switch {
		case o.Try.Accepted():
			l.FailingSince = 0
		case l.FailingSince == 0 || l.FailingSince > t.Now: // a time in the future is from before the clock was set back
			l.FailingSince = t.Now
		}
	}
	why := o.parkReason(t.Rules, h, t.Time())
	switch {
	case o.Try.Accepted() && o.ContentErr == nil:
		l.move(h, Delivered, "")
		l.Held, l.HeldAt, l.HeldBy, l.HeldID = dedupDigest(h), t.Now, h.Receiver, h.UUID
		l.supersedeParked(h)
	case why != "":
		if o.ContentErr != nil || !l.supersedeTried(h) {
			l.move(h, Parked, why)
			l.supersedeParked(h)
		}
		l.Held = nil // the receiver may have accepted it in a try whose answer got lost
	default:
		s.NextTry = l.retry(o, h)
		return s
	}
	l.clearFailures()
	s.NextLease = l.continueLease(o)
	return s
}

// supersedeTried supersedes a webhook whose try failed, if one that replaces it came meanwhile.
func (l *Lane) supersedeTried(h *Webhook) bool {
	if !l.t.Latest {
		return false
	}
	if next := l.First(); next == nil || !l.replaces(next, h) {
		return false
	}
	l.move(h, Superseded, supersededWhy)
	return true
}

// retry ends the lease after a failed try, and says when the lane is due again.
func (l *Lane) retry(o *Outcome, h *Webhook) time.Time {
	t := l.t
	l.LastResult = LastFailed
	if o.IsMiss() {
		l.LastResult = LastMiss
	}
	backoff := t.Jitter(min(MinBackoff<<min(l.Failures, 20), MaxBackoff))
	l.NotBefore = 0
	if after := min(o.Try.RetryAfter, MaxRetryAfter); after > 0 {
		l.NotBefore = t.Now + clock.Micros(after)
	}
	l.Failures++
	if l.supersedeTried(h) {
		l.Held = nil
		l.updateWaitingSince()
	}
	l.release(t.Now + clock.Micros(backoff))
	if !l.Paused && h.State == Waiting {
		h.Next = clock.Moment(l.Due)
	}
	h.changed = true
	return clock.Moment(l.Due)
}

// proceed continues the lease with the lane's next webhook, or ends it.
func (l *Lane) continueLease(o *Outcome) *Lease {
	t := l.t
	next := l.First()
	l.updateWaitingSince()
	if next == nil || !o.WantsNext || l.Paused || l.NotBefore > t.Now || o.Lease.inARow >= maxInARow {
		l.release(t.Now)
		return nil
	}
	lease := &Lease{Webhook: next, Receiver: o.Lease.Receiver, FailedBefore: l.FailingSince != 0, Lane: l.LaneName, LastTry: l.LastTry, Token: l.Token, inARow: o.Lease.inARow + 1}
	lease.Extend(t.LeaseEnd())
	l.LeasedID, l.Due = next.ID, t.Now+clock.Micros(t.LeaseTime)
	return lease
}

// reschedule computes the lane's due time anew, unless a process has leased it: then the outcome does that.
func (l *Lane) reschedule() {
	if !l.leased() {
		l.release(l.t.Now)
	}
}

// A Lease is the permission to deliver the first webhook of one lane. While it is valid no other process delivers that lane.
// The outcome of the delivery ends the lease, or continues it with the lane's next webhook.
//
// In the database a lease is the lane's owner, its token, and its due time, at which the lease ends by itself.
type Lease struct {
	Webhook       *Webhook
	Receiver      *receiver.Receiver
	LastTryFailed bool // the last try of this webhook failed
	FailedBefore  bool // the last try of this lane failed, be it of this webhook or of one before

	Lane       webhookgate.LaneName // that it is for
	LastTry    int64                // of this lane, before this one
	Token      int64
	inARow     int                       // how many webhooks of the lane were delivered right before this one
	GivenBack  bool                      // it ends without a try
	Refused    bool                      // the database refuses to write its lane
	validUntil atomic.Pointer[time.Time] // by our own clock
}

// A leaseKey is which lease it is: the lane counts its leases. One that was continued with the next webhook is the same.
type LeaseKey struct {
	Lane  webhookgate.LaneName
	Token int64
}

func (lease *Lease) Key() LeaseKey { return LeaseKey{lease.Lane, lease.Token} }

// Valid says whether the lease still lasts. It must be asked right before each write to the receiver: the process may have been
// stopped for any time since it was last asked, without noticing.
func (lease *Lease) Valid() bool {
	now, until := time.Now(), *lease.validUntil.Load()
	// Both clocks must agree: the monotonic one stands still while a machine sleeps, and the wall clock can be set back.
	return now.Before(until) && now.Round(0).Before(until.Round(0))
}

// ValidUntil is when the lease ends, unless it is renewed.
func (lease *Lease) ValidUntil() time.Time { return *lease.validUntil.Load() }

// extend sets when the lease ends.
func (lease *Lease) Extend(until time.Time) { lease.validUntil.Store(&until) }

// An Outcome is what came of a lease: usually one try.
type Outcome struct {
	Lease      *Lease
	Try        receiver.Try
	Began      time.Time
	Took       time.Duration
	Aborted    bool          // there was no try, or usher itself cancelled it
	RetryIn    time.Duration // if Aborted: how long to wait before the next try
	ContentErr error         // there was no try because the content is damaged
	WantsNext  bool          // the courier wants to deliver the lane's next webhook, too
	Counts     bool          // the failure counts towards Config.MaxTries

	TryResult // the result
}

const (
	MinBackoff = time.Second
	MaxBackoff = 5 * time.Minute
	// maxRetryAfter bounds a receiver's Retry-After.
	MaxRetryAfter = time.Hour
	// maxInARow is how many webhooks of a lane are delivered in a row before other lanes get their turn.
	maxInARow = 16
)

// parkReason says why a webhook that was not accepted is parked. Empty: it is tried again.
func (o *Outcome) parkReason(rules *Rules, h *Webhook, now time.Time) string {
	switch {
	case o.ContentErr != nil:
		return o.ContentErr.Error()
	case isPermanent(o.Try.Status):
		return "the receiver will not take it: " + http.StatusText(o.Try.Status)
	case h.Counted >= rules.MaxTries:
		return "too many failed tries (USHER_WEBHOOK_INBOX_TRIES)"
	case h.Tries >= rules.MaxTries && now.Sub(h.FirstTry) > rules.MaxAge:
		return "older than USHER_WEBHOOK_INBOX_MAX_AGE"
	}
	return ""
}

// isMiss says whether a try was a miss: it says that the receiver is down, and nothing about the webhook.
func IsMiss(status int) bool {
	switch status {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// IsMiss says whether the try was a miss: the receiver is to blame, and not the webhook.
func (o *Outcome) IsMiss() bool {
	failed := o.ContentErr == nil && !o.Aborted && !o.Try.Accepted()
	return failed && IsMiss(o.Try.Status)
}

// Permanent says whether the receiver has said that it will never take this webhook.
func (o *Outcome) Permanent() bool {
	return o.ContentErr == nil && !o.Aborted && isPermanent(o.Try.Status)
}

// isPermanent says whether the receiver will never take this webhook.
func isPermanent(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
