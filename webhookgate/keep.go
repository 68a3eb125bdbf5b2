package webhookgate

import (
	"errors"
	"net/http"
)

// What Config.Keep may say of a webhook that it does not take. Any other error means that it can't
// be written at the moment.
var (
	// ErrFull: as much is kept as may be. The sender is told to come again.
	ErrFull = errors.New("the inbox is full")
	// ErrTooLarge: whoever keeps webhooks can't take one as large.
	ErrTooLarge = errors.New("the webhook is too large for the inbox")
)

// keep hands w over to whoever keeps webhooks.
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
