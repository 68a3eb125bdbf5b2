package webhookgate

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"usher/webhookgate/delivery"
)

// asks reports whether a webhook of this type is a question.
func (g *Gate) asks(typ string) bool { return slices.Contains(g.cfg.SyncTypes, typ) }

// ask sends a question to the receiver and returns its answer. The sender needs it now: so there
// is one try, in no lane, and nothing is kept or remembered. If the sender hangs up the try
// ends, unlike a delivery.
func (g *Gate) ask(v *visit) *answer {
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(g.deliveries, cancel)() // ends the try when the grace of a shutdown is over
	w, rc := v.webhook, v.receiver
	start := time.Now()
	decision, err := rc.Ask(ctx, w.ID, w.Header, w.Body)
	t := Attempt{Err: err}
	if err == nil {
		t.Status = decision.Status
	}
	if ctx.Err() == nil { // otherwise the result says nothing about the receiver
		g.cfg.Attempted(rc.Name, questionResult(t), time.Since(start))
	}
	var a *answer
	switch {
	case err == nil:
		a = &answer{status: decision.Status, Decision: forwarded, decision: decision}
	case v.r.Context().Err() != nil:
		a = &answer{status: statusHungUp, Decision: failed, Error: "the sender hung up before the receiver answered"}
	case g.deliveries.Err() != nil:
		a = shuttingDown()
	default:
		g.logFailure(rc, w, 1, t)
		a = failure(rc, w, 1, t)
	}
	a.Webhook, a.Tries = w.ID, 1
	return a
}

// statusHungUp is for logs and metrics only: no sender gets it.
const statusHungUp = 499

// questionResult is as Attempt.Result, but a "no" is an answer, too.
func questionResult(t Attempt) string {
	if t.Status != 0 && t.Status < 500 {
		return "ok"
	}
	return t.Result()
}

// writeDecision passes the receiver's answer to the sender unchanged.
func writeDecision(w http.ResponseWriter, d *delivery.Decision) {
	h := w.Header()
	maps.Copy(h, d.Header)
	if d.Status != http.StatusNoContent && d.Status != http.StatusNotModified { // these have no body, and no length
		h.Set("Content-Length", strconv.Itoa(len(d.Body)))
	}
	h.Set("Usher-Decision", forwarded)
	w.WriteHeader(d.Status)
	w.Write(d.Body) // an error means that the sender has gone
}
