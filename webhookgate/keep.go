package webhookgate

import (
	"errors"
	"net/http"
)

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
		a := duplicateOf(original)
		return &a
	}
	return &answer{status: http.StatusOK, Decision: queued, Webhook: w.ID}
}
