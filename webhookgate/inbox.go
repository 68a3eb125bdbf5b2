package webhookgate

import (
	"context"
	"errors"
	"net/http"

	"usher/internal/wire"
	"usher/webhookgate/delivery"
)

// What an inbox and the gate have to do with each other: the gate hands webhooks over, and the
// inbox has the gate try them.

// Errors of Config.Keep. Any other error means that the webhook could not be stored for now.
var (
	// ErrFull: the inbox has no room. The sender is told to come back later.
	ErrFull = errors.New("the inbox is full")
	// ErrTooLarge: the inbox cannot store a webhook of this size.
	ErrTooLarge = errors.New("the webhook is too large for the inbox")
)

// keep hands w over to the inbox.
func (g *Gate) keep(w *Webhook) *answer {
	original, err := g.cfg.Keep(w)
	switch {
	case errors.Is(err, ErrTooLarge):
		return reject(http.StatusRequestEntityTooLarge, "this webhook is larger than the inbox's servers accept")
	case errors.Is(err, ErrFull):
		g.cfg.Log.Error("inbox is full, webhook refused", "webhook", w.ID, "err", err)
		return busy("the inbox is full; please send this webhook again later")
	case err != nil:
		g.cfg.Log.Error("cannot store a webhook", "webhook", w.ID, "err", err)
		return busy("the inbox can't be written right now; please send this webhook again")
	case original != "":
		return duplicateOf(original)
	}
	return &answer{status: http.StatusOK, Decision: queued, Webhook: w.ID}
}

// keepsAnyway reports whether a webhook of this type is kept although no receiver takes it.
func (g *Gate) keepsAnyway(typ string) bool {
	return g.cfg.KeepUnclaimed && !g.asks(typ)
}

// ReceiverOf returns the name of the receiver of a lane's webhooks, or the empty string. The
// inbox should ask before each try: it stores webhooks by tenant, and the current settings
// decide who gets them.
func (g *Gate) ReceiverOf(l Lane) string {
	if rc := g.receivers.takes(l.Platform); rc != nil {
		return rc.Name
	}
	return ""
}

// errNoReceiver: a webhook could not be tried because no receiver takes its platform.
var errNoReceiver = errors.New("no receiver takes webhooks of this platform")

// An Attempt is the result of one try.
type Attempt = delivery.Attempt

// Try sends w to the receiver of its platform once. It is for an inbox (see Config.Keep), which
// decides itself whether and when to try again.
func (g *Gate) Try(ctx context.Context, w *Webhook) Attempt {
	rc := g.receivers.takes(w.Lane.Platform)
	if rc == nil {
		return Attempt{Err: errNoReceiver}
	}
	return g.try(ctx, rc, w)
}

// Fenced returns a context for a Try that asks may right before each write, and sends nothing
// if may says no. The hazard: a process can be stopped at any time. When it continues it does
// what it was about to do, before it learns that another replica now delivers. A stop between
// the last look and the system call remains possible. Fenced works with the gate's own
// transport only; another transport has to do this itself.
func Fenced(ctx context.Context, may func() bool) context.Context {
	return wire.With(ctx, wire.Call{Fence: func() error {
		if !may() {
			return errFenced
		}
		return nil
	}})
}

// errFenced is why a write did not happen. The receiver then gets no complete request.
var errFenced = errors.New("no longer this replica's to deliver")
