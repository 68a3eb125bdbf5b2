package courier

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// delivery is what came of a turn.
type delivery struct {
	began   time.Time
	whole   *webhookgate.Webhook // nil: its content could not be read
	attempt webhookgate.Attempt
	err     error     // why its content could not be read
	cut     bool      // usher is ending, or no longer delivers: as if it had not been tried
	next    time.Time // when its lane may be tried again

	outdated bool // it was not tried, as only the latest is wanted
}

// deliver tries the first of a lane once.
func (c *Courier) deliver(hard context.Context, t *turn) {
	d := c.send(hard, t)
	c.mu.Lock()
	wasDown := t.receiver.breaker.open
	outcome := c.finish(t, &d)
	down := t.receiver.breaker.open
	c.mu.Unlock()
	c.tell(t.lane) // before anything that may take long, such as a line in the log
	c.leave(t)
	if d.attempt.Accepted() && c.cfg.Delivered != nil {
		c.cfg.Delivered(t.receiver.Name, max(0, outcome.Status.Changed.Sub(outcome.Since()))) // a clock may have been set back
	}
	c.report(&outcome, &d)
	switch {
	case down && !wasDown:
		c.cfg.Log.Warn("receiver seems to be down, trying one delivery at a time",
			"receiver", t.receiver.Name, "pending", c.Stats().Receivers[t.receiver.Name].Pending)
	case wasDown && !down:
		c.cfg.Log.Info("receiver answers again",
			"receiver", t.receiver.Name, "pending", c.Stats().Receivers[t.receiver.Name].Pending)
	}
}

// leave ends a delivery, once the store was told of it.
func (c *Courier) leave(t *turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tm, b := t.lane.term, &t.receiver.breaker
	if tm.underway--; tm.ended && tm.underway == 0 {
		close(tm.idle)
	}
	if b.underway+1 < b.now && t.receiver.due.Len() > 1 { // room for others than who goes on here
		c.poke()
	}
}

// right is the leave to make one delivery. Lost once, it is lost for that delivery, though
// a renewal of the lease may bring it back a moment later: what was held back meanwhile
// must not be taken for a try that failed.
type right struct {
	*term
	lost atomic.Bool
}

func (r *right) held() bool {
	if !r.Held() {
		r.lost.Store(true)
	}
	return !r.lost.Load()
}

// send tries a webhook once, if it can read the content and this process may deliver.
func (c *Courier) send(hard context.Context, t *turn) (d delivery) {
	leave := &right{term: t.lane.term}
	if leave.held() && c.outdated(t) {
		return delivery{outdated: true}
	}
	ctx, cancel := context.WithCancel(hard)
	defer cancel()
	defer context.AfterFunc(leave.ctx, cancel)()
	d.whole, d.err = c.content(ctx, t)
	d.began = time.Now()
	// A process that was stopped since its turn has not been told yet that it lost the
	// right to deliver, and would send what others have gone beyond.
	// And its content may have taken long to read: somebody may have paused it meanwhile.
	paused := c.paused(t)
	if d.err == nil && leave.held() && !paused {
		d.attempt = t.receiver.Try(webhookgate.Fenced(ctx, leave.held), d.whole)
	}
	d.cut = (ctx.Err() != nil || !leave.held() || paused && d.err == nil) && !d.attempt.Accepted()
	return d
}

// content is the whole webhook, from memory or from the store.
func (c *Courier) content(ctx context.Context, t *turn) (*webhookgate.Webhook, error) {
	c.mu.Lock()
	whole := t.item.whole
	c.mu.Unlock()
	if whole != nil {
		return whole, nil
	}
	return t.lane.term.Content(ctx, t.item.ID)
}

func (c *Courier) report(r *record.Record, d *delivery) {
	attrs := []slog.Attr{
		slog.Uint64("id", r.ID), slog.String("webhook", r.Webhook.ID),
		slog.String("platform", r.Webhook.Lane.Platform), slog.String("tenant", r.Webhook.Lane.Tenant),
		slog.String("receiver", r.Status.Receiver), slog.String("state", string(r.Status.State)), slog.Int("attempt", r.Status.Tries),
	}
	if id := traceID(d.whole); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	level, message := slog.LevelInfo, "webhook delivered"
	switch a := d.attempt; {
	case d.outdated:
		message = "webhook superseded by a newer one"
	case d.cut:
		message = "delivery interrupted, will retry"
	case errors.Is(d.err, record.ErrDamaged):
		level, message = slog.LevelError, "webhook damaged, parked"
		attrs = append(attrs, slog.Any("err", d.err))
	case d.err != nil:
		level, message = slog.LevelError, "webhook can't be read"
		attrs = append(attrs, slog.Any("err", d.err))
	case a.Accepted():
	default:
		switch r.Status.State {
		case record.Parked:
			level, message = slog.LevelWarn, "webhook parked"
			attrs = append(attrs, slog.String("why", r.Status.Why))
		default:
			message = "delivery failed, will retry"
			attrs = append(attrs, slog.Duration("next_try", max(0, time.Until(d.next)).Round(time.Second/10)))
		}
		if a.Status != 0 {
			attrs = append(attrs, slog.Int("receiver_status", a.Status))
		} else {
			attrs = append(attrs, slog.Any("err", a.Err))
		}
	}
	c.cfg.Log.LogAttrs(context.Background(), level, message, attrs...)
}

// traceID is the trace that the sender says a webhook belongs to (W3C Trace Context).
func traceID(w *webhookgate.Webhook) string {
	if w == nil {
		return ""
	}
	parts := strings.Split(w.Header.Get("Traceparent"), "-")
	if len(parts) < 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" {
		return ""
	}
	return parts[1]
}
