package courier

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// finish ends a turn and returns how its item stands then. c.mu is held.
func (c *Courier) finish(t *turn, d *delivery) record.Record {
	l, it, r := t.lane, t.item, t.item.Record
	b := &t.receiver.breaker
	before := l.last
	l.busy, l.woken, l.last = false, l.woken && d.cut, d.began
	c.release(it) // one that failed may wait for long
	switch now := time.Now(); {
	case d.outdated:
		b.abandoned()
		l.last = before
		r.Enter(record.Superseded, newerCame)
		c.note(l, it, r, nil)
	case d.cut:
		b.abandoned()
	case errors.Is(d.err, record.ErrDamaged), errors.Is(d.err, record.ErrNotFound):
		b.abandoned()
		l.reset()
		r.Enter(record.Parked, d.err.Error())
		c.note(l, it, r, nil)
	case d.err != nil: // the store cannot be read right now
		b.abandoned()
		l.at = now.Add(c.cfg.Pause(l.ceiling()))
		l.down = false // or an open breaker would have it tried at once, again and again
		l.failures++
	default:
		r.NoteAttempt(d.began, now, d.attempt)
		r.Status.Receiver = t.receiver.Name
		c.conclude(t, &r, d, before, now)
	}
	d.next = l.at
	c.schedule(l)
	return r
}

// conclude decides what becomes of a webhook after a try. before is when its lane was
// tried the last time. c.mu is held.
func (c *Courier) conclude(t *turn, r *record.Record, d *delivery, before, now time.Time) {
	rc, l, a := t.receiver, t.lane, d.attempt
	if isDown(a) {
		rc.breaker.failed(now)
	} else {
		if a.Accepted() || rc.breaker.open { // whatever it answers, it is back
			rc.wakeDown(now)
		}
		rc.breaker.answered()
		r.Status.Counted++
	}
	why := c.hopeless(r, a, now)
	switch {
	case a.Accepted():
		rc.accepted = now
		l.reset()
		r.Enter(record.Delivered, "")
		c.note(l, t.item, *r, d.whole)
		c.overtake(l, r)
		return
	case why != "":
		l.reset()
		r.Enter(record.Parked, why)
	default:
		// A lane that finds the receiver down again, though others were taken
		// meanwhile, has a trouble of its own: waking it with each of them would let
		// some such lanes take up every place.
		l.down = isDown(a) && !(l.failures > 0 && rc.accepted.After(before))
		l.wish = now.Add(min(a.RetryAfter, longestWish))
		l.at = later(l.wish, now.Add(c.cfg.Pause(l.ceiling())))
		l.failures++
		r.Status.Next = l.at
	}
	c.note(l, t.item, *r, d.whole)
}

// outdated says whether something newer has come than what has its turn, and only the latest is wanted. c.mu is not held.
func (c *Courier) outdated(t *turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	newer := func(o *item) bool { return o.ID > t.item.ID && o.Webhook.Snapshot }
	return c.cfg.KeepLatest && t.item.Webhook.Snapshot && t.item.Status.Again.IsZero() && slices.ContainsFunc(t.lane.waiting, newer)
}

// newerCame is why a snapshot is superseded that the receiver has not accepted.
const newerCame = "a newer snapshot of the tenant came before it was delivered"

// overtake has what is parked of the tenant, and older than what was accepted, superseded.
func (c *Courier) overtake(l *lane, r *record.Record) {
	if !r.Webhook.Snapshot {
		return
	}
	for _, p := range l.parked {
		if p.ID < r.ID && p.Webhook.Snapshot {
			s := p.Record
			s.Enter(record.Superseded, "a newer snapshot of the tenant was accepted")
			c.note(l, p, s, nil)
		}
	}
}

// hopeless says why a webhook that was not accepted is not tried any more; empty: it is.
func (c *Courier) hopeless(r *record.Record, a webhookgate.Attempt, now time.Time) string {
	switch {
	case isFinal(a.Status):
		return "the receiver will not take it: " + http.StatusText(a.Status)
	case r.Status.Counted >= c.cfg.Attempts:
		return "every try failed"
	case now.Sub(r.Since()) > c.cfg.MaxAge:
		return "too old"
	}
	return ""
}

// isDown: these say that the receiver is down, and nothing of the webhook.
func isDown(a webhookgate.Attempt) bool {
	switch a.Status {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// isFinal: these say that this webhook will never be taken.
func isFinal(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
