package webhookgate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"usher/internal/receiver"
)

const (
	// firstPause is the longest pause before the second try. It doubles with each further try, up to longestPause. If
	// a receiver's Retry-After is longer than that, usher gives up: the sender is waiting.
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
)

// A courier delivers webhooks.
type courier struct {
	ctx    context.Context // ends all deliveries
	tries  int
	jitter func(ceiling time.Duration) time.Duration // returns a random time below ceiling
	log    *slog.Logger
}

// deliver tries w until the receiver accepts it, or until another try makes no sense. It ends
// early only if ctx ends.
func (c *courier) deliver(w *Webhook) *answer {
	tries := 0
	for c.ctx.Err() == nil {
		t := w.Receiver.Try(c.ctx, w.ID, w.Header, w.Body)
		tries++
		if t.Accepted() {
			return &answer{status: http.StatusOK, Decision: forwarded, Webhook: w.ID, Tries: tries}
		}
		logFailure(c.log, w, tries, t)
		pause, again := c.pause(t, tries)
		if c.ctx.Err() == nil && (!again || tries >= c.tries) {
			return failure(w, tries, t)
		}
		select {
		case <-c.ctx.Done():
		case <-time.After(pause):
		}
	}
	a := shuttingDown()
	a.Webhook, a.Tries = w.ID, tries
	return a
}

// pause returns how long to wait after t, the nth try, and whether to try again at all. It uses full
// jitter, so that webhooks that failed together are not retried together.
func (c *courier) pause(t receiver.Try, n int) (time.Duration, bool) {
	passing := []int{0, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}
	if t.Status < 500 && !slices.Contains(passing, t.Status) ||
		t.RetryAfter > longestPause || errors.Is(t.Err, receiver.ErrUnsigned) {
		return 0, false
	}
	ceiling := min(longestPause, firstPause<<min(n-1, 10))
	return max(t.RetryAfter, c.jitter(ceiling)), true
}

// failure is the answer to the sender if t, the nth try, was the last one.
func failure(w *Webhook, n int, t receiver.Try) *answer {
	if errors.Is(t.Err, receiver.ErrUnsigned) {
		return busy("usher cannot sign deliveries right now")
	}
	a := fail(http.StatusBadGateway, w.Receiver.Why(t))
	if t.TimedOut() {
		a.status = http.StatusGatewayTimeout
	}
	a.Webhook, a.Tries = w.ID, n
	if t.Status != 0 {
		a.Receiver = &receiversAnswer{t.Status}
	}
	return a
}

func logFailure(log *slog.Logger, w *Webhook, n int, t receiver.Try) {
	attrs := append(w.attrs(), slog.String("receiver", w.Receiver.Name), slog.Int("try", n), slog.String("result", t.Result()))
	if t.Status != 0 {
		attrs = append(attrs, slog.Int("receiver_status", t.Status))
	} else {
		attrs = append(attrs, slog.String("error", t.Err.Error()))
	}
	log.LogAttrs(context.Background(), slog.LevelInfo, "webhook try failed", attrs...)
}
