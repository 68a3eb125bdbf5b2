package webhookgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// maxDecision is how much of a receiver's answer is passed on; a place in flight is held
// for it, so it is bounded.
const maxDecision = 1 << 20

// A decision is the receiver's answer to a question, as it came.
type decision struct {
	header http.Header // what says how to read body, and no more
	body   []byte
}

// asks says whether a webhook of this type is a question.
func (g *Gate) asks(typ string) bool { return slices.Contains(g.cfg.SyncTypes, typ) }

// ask takes a question to the receiver, and its answer back. Who asks wants to know now: so
// there is one try, in no lane, and nothing is kept or remembered. Nor is there a point in
// going on when nobody waits any more: unlike a delivery it ends with its sender.
func (g *Gate) ask(v *visit) *answer {
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(g.deliveries, cancel)() // a shutdown whose grace is over
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

// statusHungUp is for logs and metrics: nobody is told any more.
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
		result = "ok" // a no is an answer, too
	}
	if asker.Err() == nil { // else it says nothing about the receiver
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
	if resp.StatusCode < 200 {
		return nil, fmt.Errorf("the receiver answered %d, which is not a final answer", resp.StatusCode)
	}
	// Whole, or not at all: what breaks off must not look like a decision.
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDecision+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the receiver's answer ended too early: %w", err)
	case len(body) > maxDecision:
		return nil, errors.New("the receiver's answer is larger than " + strconv.Itoa(maxDecision) + " bytes")
	}
	header := make(http.Header)
	for _, name := range []string{"Content-Type", "Content-Encoding"} {
		header[name] = resp.Header.Values(name) // nil: not even a guess
	}
	return &answer{status: resp.StatusCode, Decision: forwarded, decision: &decision{header, body}}, nil
}

// write hands the receiver's answer to the sender as it is.
func (d *decision) write(w http.ResponseWriter, status int) {
	h := w.Header()
	for name, values := range d.header {
		h[name] = values
	}
	h.Set("Content-Length", strconv.Itoa(len(d.body)))
	h.Set("Usher-Decision", forwarded)
	w.WriteHeader(status)
	w.Write(d.body) // a sender that has gone is not told, and that is all
}
