package webhookgate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"usher/webhookgate/delivery"
)

const (
	firstPause   = 500 * time.Millisecond // at most, before the second try; then doubled
	longestPause = 10 * time.Second       // also for a receiver's Retry-After: a sender is waiting
)

// deliver tries w until the receiver accepts it, or another try makes no sense. It ends early
// only if a shutdown cancels deliveries.
func (g *Gate) deliver(rc *receiver, w *Webhook) *answer {
	ctx, tries := g.deliveries, 0
	for ctx.Err() == nil {
		t := g.try(ctx, rc, w)
		tries++
		if t.Accepted() {
			return &answer{status: http.StatusOK, Decision: forwarded, Webhook: w.ID, Tries: tries}
		}
		g.logFailure(rc, w, tries, t)
		pause, again := g.pause(t, tries)
		if ctx.Err() == nil && (!again || tries >= g.cfg.Attempts) {
			return failure(rc, w, tries, t)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	no := shuttingDown()
	no.Webhook, no.Tries = w.ID, tries
	return no
}

// try sends w to the receiver once, and counts it.
func (g *Gate) try(ctx context.Context, rc *receiver, w *Webhook) Attempt {
	start := time.Now()
	t := rc.Try(ctx, w.ID, w.Header, w.Body)
	g.cfg.Attempted(rc.Name, t.Result(), time.Since(start))
	return t
}

// pause says whether to try again after t, the nth try, and when. It uses full jitter, so that
// webhooks that failed together are not retried together.
func (g *Gate) pause(t Attempt, n int) (time.Duration, bool) {
	switch t.Status {
	case 0, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
	default:
		if t.Status < 500 {
			return 0, false
		}
	}
	if t.RetryAfter > longestPause || errors.Is(t.Err, delivery.ErrUnsigned) {
		return 0, false
	}
	ceiling := min(longestPause, firstPause<<min(n-1, 10))
	return max(t.RetryAfter, g.jitter(ceiling)), true
}

// failure is the answer to the sender if t, the nth try, was the last.
func failure(rc *receiver, w *Webhook, n int, t Attempt) *answer {
	if errors.Is(t.Err, delivery.ErrUnsigned) {
		return busy("usher cannot sign deliveries right now; please send this webhook again")
	}
	a := &answer{status: http.StatusBadGateway, Decision: failed, Error: rc.Why(t), Webhook: w.ID, Tries: n}
	if t.TimedOut() {
		a.status = http.StatusGatewayTimeout
	}
	if t.Status != 0 {
		a.Receiver = &receiversAnswer{t.Status, t.Excerpt}
		if t.RetryAfter > longestPause {
			a.Error += fmt.Sprintf(" and asked to wait %s seconds", seconds(t.RetryAfter))
		}
	}
	if n > 1 {
		a.Error += fmt.Sprintf(", on the last of %d tries", n)
	}
	return a
}

func (g *Gate) logFailure(rc *receiver, w *Webhook, n int, t Attempt) {
	attrs := append(w.attrs(), slog.String("receiver", rc.Name), slog.Int("try", n), slog.String("result", t.Result()))
	if t.Status != 0 {
		attrs = append(attrs, slog.Int("receiver_status", t.Status))
	} else {
		attrs = append(attrs, slog.String("error", t.Err.Error()))
	}
	g.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "webhook try failed", attrs...)
}
