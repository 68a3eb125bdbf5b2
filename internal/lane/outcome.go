package lane

import (
	"math/rand/v2"
	"net/http"
	"time"

	"usher/internal/clock"
	"usher/internal/lane/state"
	"usher/internal/receiver"
)

// An Outcome is what came of a lease: usually one try.
type Outcome struct {
	Lease      *Lease
	Try        receiver.Try
	Began      time.Time
	Took       time.Duration
	Aborted    bool          // there was no try, or usher itself cancelled it
	RetryIn    time.Duration // if Aborted: how long to wait before the next try
	ContentErr error         // there was no try because the content is damaged

	AfterTry // what the lane made of it
}

// AfterTry is what a lane made of an outcome.
type AfterTry struct {
	LeaseLost bool      // the lease had ended, and nothing was written
	Tried     *Webhook  // the webhook as it is now
	LaneDue   time.Time // after a failed try: when the lane is tried again
}

// EndTry is for what came of a lease: usually a try. It moves the webhook into its next state, and ends the lease.
func (l *Lane) EndTry(o *Outcome) (after AfterTry) {
	if !l.owns(o.Lease) {
		return AfterTry{LeaseLost: true}
	}
	w := l.Load(o.Lease.Webhook.Row())
	switch {
	case o.Aborted && !o.Began.IsZero():
		l.NotBefore = max(l.NotBefore, l.Due) // the receiver may still be working on it
		l.release(l.t.Now)
	case o.Aborted:
		l.NotBefore = max(l.NotBefore, l.t.Now+clock.Micros(o.RetryIn))
		l.release(l.t.Now)
	case l.concludeTry(o, w):
		l.Failures = 0 // NotBefore stays: an erasure may wait
		l.release(l.t.Now)
	default:
		after.LaneDue = l.backOff(o, w)
	}
	after.Tried = w
	return after
}

// concludeTry decides what a try makes of its webhook, and says whether that was the last try: the webhook was
// accepted, or is parked now.
func (l *Lane) concludeTry(o *Outcome, w *Webhook) (last bool) {
	why := ""
	if o.ContentErr != nil {
		why = o.ContentErr.Error()
	} else {
		before := w.lastTry()
		l.recordTry(o, w)
		why = l.parkReason(o, w, before)
	}
	switch {
	case o.ContentErr == nil && o.Try.Accepted():
		isCopied := l.Tail == w.ID && l.TailDigest != nil
		l.move(w, state.Delivered, "")
		if isCopied {
			l.TailDigest, l.HeldAt = w.dedupDigest(), l.t.Now
		}
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
	w.addTry(l.t.Time().Add(-time.Since(o.Began)), o.Took, o.Try)
	w.Receiver, w.changed = o.Lease.Receiver.Name, true
	switch {
	case o.Try.Accepted():
		l.FailingSince = 0
	case l.FailingSince == 0 || l.FailingSince > l.t.Now: // in the future: it is from before the clock was set back
		l.FailingSince = l.t.Now
	}
}

// parkReason says why a webhook that was not accepted is parked. Empty: it is tried again. before is when its try before
// this one began.
//
// Time counts while the receiver accepts others: from the first failed try after it has accepted one since this webhook's
// first try. If it has accepted none since the try before, it is the receiver that is broken, and the webhook waits.
func (l *Lane) parkReason(o *Outcome, w *Webhook, before time.Time) string {
	if IsPermanent(o.Try.Status) {
		return "the receiver will not take it: " + http.StatusText(o.Try.Status)
	}
	accepted, now := clock.Moment(l.t.Accepted[w.Receiver]), l.t.Time()
	switch {
	case o.Try.Accepted() || !accepted.After(w.FirstTry):
	case w.Beside.IsZero():
		w.Beside = now
	case now.Sub(w.Beside) >= l.t.ParkAfter && accepted.After(before):
		return "it fails while the receiver accepts others (USHER_WEBHOOK_INBOX_PARK_AFTER)"
	}
	return ""
}

// backOff ends the lease after a failed try, and returns when the lane is due again.
func (l *Lane) backOff(o *Outcome, w *Webhook) time.Time {
	jitter := l.t.Jitter
	if jitter == nil {
		jitter = func(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
	}
	backoff := jitter(min(MinBackoff<<min(l.Failures, 20), MaxBackoff))
	if after := min(o.Try.RetryAfter, MaxRetryAfter); after > 0 {
		l.NotBefore = max(l.NotBefore, l.t.Now+clock.Micros(after)) // or later, if an erasure waits
	}
	l.Failures++
	l.release(l.t.Now + clock.Micros(backoff))
	w.Next, w.changed = clock.Moment(l.Due), true
	return clock.Moment(l.Due)
}

// IsPermanent says whether a status means that the receiver will never take this webhook.
func IsPermanent(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
