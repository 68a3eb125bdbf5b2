package lane

import (
	"bytes"
	"math"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"usher/internal/clock"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// A Lease is the permission to deliver the first webhook of one lane. While it is valid no other process delivers that
// lane. The outcome of the delivery ends the lease, or continues it with the lane's next webhook.
//
// In the database a lease is the lane's owner, its token, and its due time, at which the lease ends by itself.
type Lease struct {
	Webhook       *Webhook
	Receiver      *receiver.Receiver
	WebhookFailed bool // the last try of this webhook failed
	LaneFailing   bool // the last try of this lane failed, be it of this webhook or of one before

	LaneName   webhookgate.LaneName // that it is for
	LastTry    int64                // of this lane, before this one
	Token      int64
	GivenBack  bool                      // set by its holder: it ends without a try
	Refused    bool                      // set by its holder: the database refuses to write its lane
	inARow     int                       // how many webhooks of the lane were delivered right before this one
	validUntil atomic.Pointer[time.Time] // by our own clock
}

// A LeaseKey is which lease it is: the lane counts its leases. One that was continued with the next webhook is the
// same.
type LeaseKey struct {
	LaneName webhookgate.LaneName
	Token    int64
}

// Key returns which lease it is.
func (lease *Lease) Key() LeaseKey { return LeaseKey{lease.LaneName, lease.Token} }

// Valid says whether the lease still lasts. It must be asked right before each write to the receiver: the process may
// have been stopped for any time since it was last asked, without noticing.
func (lease *Lease) Valid() bool {
	now, until := time.Now(), *lease.validUntil.Load()
	// Both clocks must agree: the monotonic one stands still while a machine sleeps, and the wall clock can be set back.
	return now.Before(until) && now.Round(0).Before(until.Round(0))
}

// ValidUntil is when the lease ends, unless it is renewed.
func (lease *Lease) ValidUntil() time.Time { return *lease.validUntil.Load() }

// Extend sets when the lease ends.
func (lease *Lease) Extend(until time.Time) { lease.validUntil.Store(&until) }

// Claim gives this process a lease for the lane, if nobody has one and a webhook waits; else nil. If the settings say
// now that another receiver takes the lane, it notes that instead.
func (l *Lane) Claim(rc *receiver.Receiver) *Lease {
	if l.leased() {
		return nil
	}
	l.endExpiredLease()
	if l.UpdateReceiver(); l.ReceiverName != rc.Name {
		return nil
	}
	first := l.First()
	if first == nil && l.Waiting > 0 { // its row cannot be read: somebody has to look, and others must not wait for it
		l.Due, l.changed = l.t.Now+clock.Micros(MaxBackoff), true
		return nil
	}
	if l.Paused || first == nil {
		l.release(l.t.Now)
		return nil
	}
	return l.newLease(first, rc)
}

// Renew lets a lease last longer in the lane's row, and says whether it did: the lease may have ended. Once that is
// committed, Lease.Extend says so to its holder.
func (l *Lane) Renew(lease *Lease) bool {
	if !l.ownsLease(lease) {
		return false
	}
	l.Due, l.changed = l.t.Now+clock.Micros(l.t.LeaseTime), true
	return true
}

// newLease gives this process a lease for the lane, to deliver its first webhook.
func (l *Lane) newLease(first *Webhook, rc *receiver.Receiver) *Lease {
	lastTryFailed := l.LastResult != LastOK
	l.Token++
	return l.grant(&Lease{Webhook: first, Receiver: rc, WebhookFailed: lastTryFailed})
}

// continueLease continues a lease with the lane's next webhook, or ends it and returns nil.
func (l *Lane) continueLease(o *Outcome) *Lease {
	next := l.First()
	l.updateWaitingSince()
	if next == nil || !o.WantsNext || l.Paused || l.NotBefore > l.t.Now || o.Lease.inARow >= maxInARow {
		l.release(l.t.Now)
		return nil
	}
	return l.grant(&Lease{Webhook: next, Receiver: o.Lease.Receiver, inARow: o.Lease.inARow + 1})
}

// grant writes a lease into the lane's row, and the row's part into the lease. From here on nobody knows what the
// receiver holds, since a try may succeed without an answer. Only a 2xx says it again.
func (l *Lane) grant(lease *Lease) *Lease {
	l.Held = nil
	l.Owner, l.LeasedID = l.t.Owner, lease.Webhook.ID
	l.Due, l.changed = l.t.Now+clock.Micros(l.t.LeaseTime), true
	lease.LaneName, lease.Token, lease.LastTry = l.LaneName, l.Token, l.LastTry
	lease.LaneFailing = l.FailingSince != 0
	lease.Extend(l.t.LeaseEnd())
	return lease
}

// leased says whether a process has a valid lease for the lane, and may be delivering it. After the clock has jumped
// every lease counts as valid for a while. One of this process does until its outcome is written: after an outage of
// the database that may be later than its end, and what was accepted meanwhile must not be delivered again.
func (l *Lane) leased() bool {
	ours := bytes.Equal(l.Owner, l.t.Owner)
	if l.t.Alone {
		return ours
	}
	lasts := l.Due > l.t.Now || !l.t.MayTakeOver
	return l.Owner != nil && (lasts || ours && l.t.Inbox.IsDelivering(l.LaneName, l.Token))
}

// endExpiredLease takes the lane from an owner whose lease has ended. What changes the webhook which that owner was
// delivering must call it first, so that a late outcome no longer matches the row.
func (l *Lane) endExpiredLease() {
	if l.Owner != nil && !l.leased() {
		l.release(l.t.Now)
		l.frontier = math.MinInt64 // what it delivered may not be in memory
	}
}

// ownsLease says whether this process still has this lease. If not, the lease has ended, and another process may have
// the lane. The lane may be nil.
func (l *Lane) ownsLease(lease *Lease) bool {
	ours := l != nil && bytes.Equal(l.Owner, l.t.Owner)
	return ours && l.Token == lease.Token && l.LeasedID == lease.Webhook.ID
}

// UpdateReceiver notes which receiver takes the lane's webhooks, by the settings of now, unless somebody is delivering
// one. With another receiver the lane is due at once.
func (l *Lane) UpdateReceiver() {
	if l.t.Receivers != nil { // else this process delivers nothing, and does not know
		l.setReceiver(l.t.Receivers.For(l.Platform))
	}
}

// setReceiver notes the lane's receiver, unless somebody is delivering a webhook. What another one has failed to do,
// or asked for, does not count any more.
func (l *Lane) setReceiver(rc *receiver.Receiver) {
	if ReceiverName(rc) == l.ReceiverName || l.leased() {
		return
	}
	l.endExpiredLease()
	l.t.AddedBytes[l.ReceiverName] -= l.Bytes
	l.ReceiverName, l.FailingSince, l.changed = ReceiverName(rc), 0, true
	l.t.AddedBytes[l.ReceiverName] += l.Bytes
	l.clearBackoff()
	l.release(l.t.Now)
}

// ReceiverName returns a receiver's name; empty: there is no receiver.
func ReceiverName(rc *receiver.Receiver) string {
	if rc == nil {
		return ""
	}
	return rc.Name
}

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
	Counts     bool          // the failure counts towards Rules.MaxTries: the receiver accepts others' webhooks

	AfterTry // what the lane made of it
}

// AfterTry is what a lane made of an outcome.
type AfterTry struct {
	LeaseLost bool      // the lease had ended, and nothing was written
	Tried     Webhook   // the webhook as it is now
	NextLease *Lease    // the same lease, for the lane's next webhook; nil: the lease has ended
	LaneDue   time.Time // after a failed try: when the lane is tried again; clock.Never: it is paused
	LaneReady bool      // webhooks wait in the lane, and any process may lease it now
}

const (
	// MinBackoff is the time until the second try. It doubles with each failed try, up to MaxBackoff.
	MinBackoff = time.Second
	MaxBackoff = 5 * time.Minute
	// MaxRetryAfter bounds a receiver's Retry-After.
	MaxRetryAfter = time.Hour
	// maxInARow is how many webhooks of a lane are delivered in a row before other lanes get their turn.
	maxInARow = 16
)

// EndTry is for what came of a lease: usually a try. It moves the webhook into its next state, and then continues the
// lease with the lane's next webhook, or ends it. The lane may be nil: its row is gone.
func (l *Lane) EndTry(o *Outcome) (after AfterTry) {
	if !l.ownsLease(o.Lease) {
		return AfterTry{LeaseLost: true}
	}
	w := l.Load(o.Lease.Webhook.Row())
	switch {
	case o.Aborted:
		from := l.t.Now + clock.Micros(o.RetryIn)
		if o.Lease.GivenBack {
			from = min(l.t.Now, l.WaitingSince) // it keeps its turn
		}
		l.release(from)
	case l.concludeTry(o, w):
		l.clearFailures()
		after.NextLease = l.continueLease(o)
	default:
		after.LaneDue = l.backOff(o, w)
	}
	after.Tried, after.LaneReady = *w, l.Waiting > 0 && l.Owner == nil && l.Due <= l.t.Now
	return after
}

// concludeTry decides what a try makes of its webhook, and says whether that was the last try: the webhook was
// accepted, or is parked now.
func (l *Lane) concludeTry(o *Outcome, w *Webhook) (last bool) {
	if o.ContentErr == nil {
		l.recordTry(o, w)
	}
	why := o.parkReason(l.t.Rules, w, l.t.Time())
	switch {
	case o.Try.Accepted() && o.ContentErr == nil:
		l.move(w, state.Delivered, "")
		l.noteHeld(w, w.Receiver)
		l.supersedeParked(w)
		return true
	case why != "":
		l.move(w, state.Parked, why)
		l.supersedeParked(w)
		return true
	}
	return false
}

// recordTry adds a try to its webhook, and notes since when the lane's tries fail.
func (l *Lane) recordTry(o *Outcome, w *Webhook) {
	began := l.t.Time().Add(-time.Since(o.Began))
	w.addTry(began, o.Took, o.Try)
	w.Receiver, w.changed = o.Lease.Receiver.Name, true
	l.LastTry = began.UnixMicro()
	if o.Counts {
		w.Counted++
	}
	switch {
	case o.Try.Accepted():
		l.FailingSince = 0
	case l.FailingSince == 0 || l.FailingSince > l.t.Now: // in the future: it is from before the clock was set back
		l.FailingSince = l.t.Now
	}
}

// backOff ends the lease after a failed try, and returns when the lane is due again.
func (l *Lane) backOff(o *Outcome, w *Webhook) time.Time {
	l.LastResult = LastFailed
	if IsDown(o.Try.Status) {
		l.LastResult = LastDown
	}
	jitter := l.t.Jitter
	if jitter == nil {
		jitter = func(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
	}
	backoff := jitter(min(MinBackoff<<min(l.Failures, 20), MaxBackoff))
	l.NotBefore = 0
	if after := min(o.Try.RetryAfter, MaxRetryAfter); after > 0 {
		l.NotBefore = l.t.Now + clock.Micros(after)
	}
	l.Failures++
	l.release(l.t.Now + clock.Micros(backoff))
	if !l.Paused {
		w.Next = clock.Moment(l.Due)
	}
	w.changed = true
	return clock.Moment(l.Due)
}

// parkReason says why a webhook that was not accepted is parked. Empty: it is tried again.
func (o *Outcome) parkReason(rules *Rules, w *Webhook, now time.Time) string {
	switch {
	case o.ContentErr != nil:
		return o.ContentErr.Error()
	case IsPermanent(o.Try.Status):
		return "the receiver will not take it: " + http.StatusText(o.Try.Status)
	case w.Counted >= rules.MaxTries:
		return "too many failed tries (USHER_WEBHOOK_INBOX_TRIES)"
	case w.Tries >= rules.MaxTries && now.Sub(w.FirstTry) > rules.MaxAge:
		return "older than USHER_WEBHOOK_INBOX_MAX_AGE"
	}
	return ""
}

// IsDown says whether the status of a failed try means that the receiver is down, which says nothing about the
// webhook; zero: there was no answer.
func IsDown(status int) bool {
	switch status {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// IsPermanent says whether a status means that the receiver will never take this webhook.
func IsPermanent(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
