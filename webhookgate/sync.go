package webhookgate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// maxDecision is the largest answer of a receiver that is passed on. It is limited because the
// answer holds a place in flight.
const maxDecision = 1 << 20

// A decision is the receiver's unchanged answer to a question.
type decision struct {
	header http.Header // only what is needed to read the body
	body   []byte
}

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
	a, t := rc.ask(ctx, w)
	if a == nil {
		switch {
		case v.r.Context().Err() != nil:
			a = &answer{status: statusHungUp, Decision: failed, Error: "the sender hung up before the receiver answered"}
		case g.deliveries.Err() != nil:
			a = shuttingDown()
		default:
			rc.logFailure(w, 1, t)
			no := t.failure(w, 1, rc.timeout)
			a = &no
		}
	}
	a.Webhook, a.Tries = w.ID, 1
	return a
}

// statusHungUp is for logs and metrics only: no sender gets it.
const statusHungUp = 499

// ask sends w once, and returns the receiver's answer, or how the try failed.
func (rc *receiver) ask(asker context.Context, w *Webhook) (*answer, Attempt) {
	ctx, cancel := context.WithTimeout(asker, rc.timeout)
	defer cancel()
	start := time.Now()
	a, err := rc.exchange(ctx, w)
	t := Attempt{Err: err}
	if err == nil {
		t.Status = a.status
	}
	result := t.result()
	if result == "status" && t.Status < 500 {
		result = "ok" // a "no" is an answer, too
	}
	if asker.Err() == nil { // otherwise the result says nothing about the receiver
		rc.attempted(rc.name, result, time.Since(start))
	}
	return a, t
}

func (rc *receiver) exchange(ctx context.Context, w *Webhook) (*answer, error) {
	req, err := rc.request(ctx, w)
	if err != nil {
		return nil, err
	}
	resp, err := rc.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	// All of it or nothing: half an answer must not look like a decision.
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDecision+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", unusable("the receiver's answer ended too early"), err)
	case len(body) > maxDecision:
		return nil, unusable(fmt.Sprintf("the receiver's answer is larger than %d bytes", maxDecision))
	}
	header := make(http.Header)
	for _, name := range []string{"Content-Type", "Content-Encoding"} {
		header[name] = resp.Header.Values(name) // nil keeps net/http from guessing a type
	}
	return &answer{status: resp.StatusCode, Decision: forwarded, decision: &decision{header, body}}, nil
}

// unusable says what is wrong with a receiver's answer. It contains no address: the sender may
// read it.
type unusable string

func (u unusable) Error() string { return string(u) }

// write passes the receiver's answer to the sender unchanged.
func (d *decision) write(w http.ResponseWriter, status int) {
	h := w.Header()
	for name, values := range d.header {
		h[name] = values
	}
	if status != http.StatusNoContent && status != http.StatusNotModified { // these have no body, and no length
		h.Set("Content-Length", strconv.Itoa(len(d.body)))
	}
	h.Set("Usher-Decision", forwarded)
	w.WriteHeader(status)
	w.Write(d.body) // an error means that the sender has gone
}
