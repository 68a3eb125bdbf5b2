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
	// firstPause is the longest pause before the second try. It doubles with each further try, up
	// to longestPause. If a receiver's Retry-After is longer than that, usher gives up: the sender
	// is waiting.
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
)

// deliver tries w until the receiver accepts it, or until another try makes no sense. It ends
// early only if Shutdown cancels deliveries.
func (g *Gate) deliver(w *Webhook) *answer {
	ctx, tries := g.deliveries, 0
	for ctx.Err() == nil {
		t := w.Receiver.Try(ctx, w.ID, w.Header, w.Body)
		tries++
		if t.Accepted() {
			return &answer{status: http.StatusOK, Decision: forwarded, Webhook: w.ID, Tries: tries}
		}
		g.logFailure(w, tries, t)
		pause, again := g.pause(t, tries)
		if ctx.Err() == nil && (!again || tries >= g.cfg.Tries) {
			return failure(w, tries, t)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	a := shuttingDown()
	a.Webhook, a.Tries = w.ID, tries
	return a
}

// pause returns how long to wait after t, the nth try, and whether to try again at all. It uses full
// jitter, so that webhooks that failed together are not retried together.
func (g *Gate) pause(t receiver.Try, n int) (time.Duration, bool) {
	switch t.Status {
	case 0, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
	default:
		if t.Status < 500 {
			return 0, false
		}
	}
	if t.RetryAfter > longestPause || errors.Is(t.Err, receiver.ErrUnsigned) {
		return 0, false
	}
	ceiling := min(longestPause, firstPause<<min(n-1, 10))
	return max(t.RetryAfter, g.jitter(ceiling)), true
}

// failure is the answer to the sender if t, the nth try, was the last one.
func failure(w *Webhook, n int, t receiver.Try) *answer {
	if errors.Is(t.Err, receiver.ErrUnsigned) {
		return busy("usher cannot sign deliveries right now; please send this webhook again")
	}
	a := &answer{status: http.StatusBadGateway, Decision: failed, Error: w.Receiver.Why(t), Webhook: w.ID, Tries: n}
	if t.TimedOut() {
		a.status = http.StatusGatewayTimeout
	}
	if t.Status != 0 {
		a.Receiver = &receiversAnswer{t.Status}
	}
	return a
}

func (g *Gate) logFailure(w *Webhook, n int, t receiver.Try) {
	attrs := append(w.attrs(),
		slog.String("receiver", w.Receiver.Name),
		slog.Int("try", n),
		slog.String("result", t.Result()))
	if t.Status != 0 {
		attrs = append(attrs, slog.Int("receiver_status", t.Status))
	} else {
		attrs = append(attrs, slog.String("error", t.Err.Error()))
	}
	g.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "webhook try failed", attrs...)
}

// isQuestion reports whether webhooks of this type are questions.
func (g *Gate) isQuestion(typ string) bool { return slices.Contains(g.cfg.SyncTypes, typ) }

// ask sends a question to the receiver and returns its answer. The sender needs it now, so there is
// one try, in no lane, and nothing is stored or remembered. Unlike a delivery, the try ends if the
// sender hangs up.
func (g *Gate) ask(in *arrival) *answer {
	ctx, cancel := context.WithCancel(in.r.Context())
	defer cancel()
	defer context.AfterFunc(g.deliveries, cancel)() // Shutdown may end the try, too
	w := in.Webhook
	t := w.Receiver.Ask(ctx, w.ID, w.Header, w.Body)
	var a *answer
	switch {
	case t.Err == nil:
		a = &answer{status: t.Status, Decision: forwarded, receivers: &t}
	case in.r.Context().Err() != nil:
		a = &answer{status: statusHungUp, Decision: failed, Error: "the sender hung up before the receiver answered"}
	case g.deliveries.Err() != nil:
		a = shuttingDown()
	default:
		g.logFailure(w, 1, t)
		a = failure(w, 1, t)
	}
	a.Webhook, a.Tries = w.ID, 1
	return a
}

// statusHungUp is for logs and the admin port only: no sender gets it.
const statusHungUp = 499
