package inbox

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"usher/webhookgate"
)

// finish ends the turn of r, the first of a lane. c.mu is held.
func (c *courier) finish(l *lane, r *record, d *delivery) {
	before := l.last
	l.busy, l.last = false, d.began
	c.release(r) // a failed one may wait for long
	c.ended++
	var changed []*record
	switch now := time.Now(); {
	case d.cut:
		c.breaker.abandoned()
	case errors.Is(d.err, ErrDamaged), errors.Is(d.err, ErrNotFound):
		c.breaker.abandoned()
		changed = c.park(l, d.err.Error())
	case d.err != nil: // the store can't be read at the moment
		c.breaker.abandoned()
		l.at = now.Add(l.ceiling())
		l.down = false // or an open breaker would have it tried at once, again and again
		l.failures++
	default:
		r.note(d.began, now, d.attempt)
		changed = c.conclude(l, d.attempt, before, now)
	}
	c.settle(changed)
	c.schedule(l, time.Now())
	c.tidy(l)
}

// conclude decides what becomes of the first of a lane after a try, and returns the
// records that stand otherwise now. before is when it was tried the last time, if it
// was. c.mu is held.
func (c *courier) conclude(l *lane, a webhookgate.Attempt, before, now time.Time) []*record {
	r := l.waiting[0]
	if !isDown(a) {
		r.status.Tries++
	}
	switch {
	case a.Accepted():
		c.breaker.answered()
		c.accepted = now
		if c.down {
			c.wakeDown()
		}
		return c.delivered(l)
	case isDown(a):
		c.breaker.failed(now)
	default:
		c.breaker.answered()
	}
	switch {
	case isFinal(a.Status):
		return c.park(l, "the receiver will not take it: "+http.StatusText(a.Status))
	case r.status.Tries >= c.attempts:
		return c.park(l, "every try failed")
	case now.Sub(r.since()) > c.maxAge:
		return c.park(l, "too old")
	}
	// A lane that finds the receiver down again, though others were taken meanwhile,
	// has a trouble of its own: waking it with each of them would let some such lanes
	// take up every place.
	l.down = isDown(a) && !(l.failures > 0 && c.accepted.After(before))
	c.down = c.down || l.down
	l.wish = now.Add(min(a.RetryAfter, longestWish))
	l.at = later(l.wish, now.Add(c.pause(l.ceiling())))
	l.failures++
	if c.keepLatest && r.webhook.Snapshot && r.status.Again.IsZero() && slices.ContainsFunc(l.waiting, r.newer) {
		l.waiting = slices.Delete(l.waiting, 0, 1)
		c.pending--
		r.enter(Superseded, newerCame)
	}
	return []*record{r}
}

// newerCame is why a snapshot is superseded that the receiver has not accepted.
const newerCame = "a newer snapshot of the tenant came before it was delivered"

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

// delivered: the first of a lane was accepted. What is parked of the tenant and
// older has been overtaken.
func (c *courier) delivered(l *lane) []*record {
	r := c.shift(l)
	r.enter(Delivered, "")
	changed := []*record{r}
	if r.webhook.Snapshot {
		l.parked = slices.DeleteFunc(l.parked, func(p *record) bool {
			if p.id > r.id || !p.webhook.Snapshot {
				return false
			}
			p.enter(Superseded, "a newer snapshot of the tenant was accepted")
			changed = append(changed, p)
			return true
		})
	}
	return changed
}

func (c *courier) park(l *lane, why string) []*record {
	r := c.shift(l)
	r.enter(Parked, why)
	l.parked = append(l.parked, r)
	return []*record{r}
}

// shift takes the first out of a lane.
func (c *courier) shift(l *lane) *record {
	r := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	c.pending--
	l.failures, l.down, l.at = 0, false, time.Time{}
	return r
}

// wakeDown has the lanes try again that wait because the receiver was down: soon,
// but none twice within the first pause.
func (c *courier) wakeDown() {
	c.down = false
	for _, l := range c.queue {
		l.wake()
	}
	heap.Init(&c.queue)
}

func (c *courier) report(r *record, d *delivery) {
	attrs := []slog.Attr{
		slog.Uint64("id", r.id), slog.String("webhook", r.webhook.ID),
		slog.String("platform", r.webhook.Lane.Platform), slog.String("tenant", r.webhook.Lane.Tenant),
		slog.String("state", string(r.status.State)), slog.Int("tries", r.status.Tries),
	}
	level, message := slog.LevelInfo, "webhook delivered"
	switch a := d.attempt; {
	case d.cut:
		message = "delivery broken off, it waits for the next start"
	case errors.Is(d.err, ErrDamaged):
		level, message = slog.LevelError, "webhook damaged, parked"
		attrs = append(attrs, slog.Any("err", d.err))
	case d.err != nil:
		level, message = slog.LevelError, "webhook can't be read"
		attrs = append(attrs, slog.Any("err", d.err))
	case a.Accepted():
	default:
		switch message = "delivery failed, webhook waits"; r.status.State {
		case Parked:
			level, message = slog.LevelWarn, "webhook parked"
			attrs = append(attrs, slog.String("why", r.status.Why))
		case Superseded:
			message = "delivery failed, webhook superseded"
		}
		if a.Status != 0 {
			attrs = append(attrs, slog.Int("receiver_status", a.Status))
		} else {
			attrs = append(attrs, slog.Any("err", a.Err))
		}
	}
	c.log.LogAttrs(context.Background(), level, message, attrs...)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fullJitter is any time up to ceiling.
func fullJitter(ceiling time.Duration) time.Duration { return rand.N(ceiling) }

// newer says whether another record of r's lane is a newer snapshot.
func (r *record) newer(other *record) bool { return other.id > r.id && other.webhook.Snapshot }

// since is when a record's age begins.
func (r *record) since() time.Time {
	if !r.status.Again.IsZero() {
		return r.status.Again
	}
	return r.webhook.Received
}

func (r *record) enter(s State, why string) {
	r.status.State, r.status.Why, r.status.Changed = s, why, time.Now()
}

func (r *record) note(began, ended time.Time, a webhookgate.Attempt) {
	n := Attempt{At: began, Took: ended.Sub(began), Status: a.Status}
	if a.Err != nil {
		n.Error = a.Err.Error()
	}
	if len(r.status.Attempts) == keptAttempts {
		r.status.Attempts = slices.Delete(slices.Clone(r.status.Attempts), 0, 1)
	}
	// A slice of its own: the store may still be writing the former one.
	r.status.Attempts = append(slices.Clip(r.status.Attempts), n)
}
