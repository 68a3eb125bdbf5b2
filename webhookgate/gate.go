package webhookgate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"time"

	"usher/internal/content"
	"usher/internal/text"
)

// A Gate is the http.Handler that webhooks are posted to.
type Gate struct {
	cfg     Config
	parsing chan struct{} // has one element for each body that is being parsed and validated
	bodies  bodies
	places  places
	courier *courier // nil, like lanes: Config.Store stores the webhooks
	lanes   *passThrough
	missed  missed

	// deliveries is the context of all deliveries: unlike a request's it does not end if a sender hangs up.
	deliveries context.Context
	cancel     context.CancelFunc // ends deliveries
}

// New makes a Gate.
func New(cfg Config) *Gate {
	shares := max(1, len(cfg.Receivers.All()))
	g := &Gate{
		cfg:     cfg,
		parsing: make(chan struct{}, runtime.GOMAXPROCS(0)),
		bodies:  bodies{limit: int64(cfg.MaxInflight) * min(cfg.MaxBody, math.MaxInt64/int64(max(1, cfg.MaxInflight)))},
		places:  places{limit: max(1, cfg.MaxInflight/shares), taken: make(map[place]int)},
		missed:  missed{report: cfg.Missed},
	}
	g.deliveries, g.cancel = context.WithCancel(context.Background())
	if cfg.Store == nil {
		g.courier = &courier{ctx: g.deliveries, tries: cfg.Tries, jitter: rand.N[time.Duration], log: cfg.Log}
		g.lanes = newPassThrough(cfg.DedupSize, cfg.DedupWindow, cfg.Log, g.courier.deliver)
	}
	return g
}

// An arrival is one request, and what is known about it so far.
type arrival struct {
	w          http.ResponseWriter
	r          *http.Request
	ctx        context.Context // ends when the sender must have its answer
	pathSecret string          // the path's last segment as it was sent, if it may be a secret
	body       body
	place      place // that it has taken; empty: none
	turn       *turn // its delivery in a lane; nil: it has none, or it is a copy of another webhook
	late       bool  // it has its answer, and the delivery, or that of the original, goes on
	id         int64 // of an invalid webhook that is stored
	Outcome
}

func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A sender that is rejected before usher has read the body has this long to send the rest of it.
	// (SetReadDeadline fails if w is not a connection, and then no read can hang.)
	err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainPatience))
	a := g.decide(w, r)
	drains := err == nil && a.status >= 400 && a.header["Connection"] != "close"
	a.write(w) // nothing needs a any more, only its bytes are in memory until the sender has read them
	if drains {
		drain(w, r)
	}
}

// decide handles a request and reports its outcome. After that, unless its delivery goes on, the request is no longer
// in flight, and usher holds nothing of it but the answer: a sender may take minutes to read it.
func (g *Gate) decide(w http.ResponseWriter, r *http.Request) *answer {
	in := &arrival{w: w, r: r, ctx: context.Background(), Outcome: Outcome{At: time.Now(), From: peerAddr(r)}}
	if g.cfg.AnswerWithin > 0 {
		ctx, cancel := context.WithDeadline(in.ctx, in.At.Add(g.cfg.AnswerWithin))
		defer cancel()
		in.ctx = ctx
	}
	defer func() {
		if in.late && in.turn != nil {
			go g.endLate(in)
		} else {
			g.leave(in)
		}
	}()
	a := g.handle(in)
	in.Stored = a.Decision == queued
	if in.Invalid != nil && g.cfg.Invalid != nil {
		in.id = g.cfg.Invalid(in.ctx, in.Invalid)
		if in.Stored = in.id != 0; !in.Stored && g.cfg.Store != nil {
			a = busy("the inbox can't be written right now") // with a 4xx nobody would send it again
		}
	}
	if in.Question && a.receivers == nil {
		a = a.forBuyer()
	}
	in.noteAnswer(a)
	g.noteMissed(in)
	if g.cfg.Answered != nil {
		g.cfg.Answered(in.Outcome)
	}
	g.log(in)
	return a
}

// handle is the whole way of a webhook, from top to bottom. The first check that fails returns the
// answer to the sender.
func (g *Gate) handle(in *arrival) *answer {
	var rejection *answer
	if in.pathSecret, rejection = g.cfg.checkPath(in.r); rejection != nil {
		return rejection
	}
	if rejection = g.cfg.checkPage(in.r); rejection != nil {
		return rejection
	}
	if rejection = g.cfg.checkToken(in.r, in.pathSecret); rejection != nil {
		return rejection
	}
	body, rejection := g.readBody(in)
	if rejection != nil {
		return rejection
	}
	if rejection = g.cfg.checkSignature(in.r, body); rejection != nil {
		return rejection
	}
	if rejection = g.parse(in, body); rejection != nil {
		return rejection
	}
	switch {
	case in.Question:
		return g.ask(in)
	case in.Webhook.Gone():
		return fail(statusHungUp, ErrGone.Error())
	case g.cfg.Store != nil:
		return g.store(in)
	default:
		return g.deliver(in)
	}
}

// readBody reads the body. One that is too large is invalid, if its sender is known.
func (g *Gate) readBody(in *arrival) ([]byte, *answer) {
	in.body.of = &g.bodies
	body, rejection := in.body.read(in.w, in.r, g.cfg.MaxBody)
	if rejection == nil || rejection.status < 500 && rejection.status != http.StatusRequestEntityTooLarge {
		return body, rejection
	}
	// Without a token nobody knows who has sent it: there is no signature over a body that is not there.
	known := g.cfg.Tokens != nil || g.cfg.SigningKeys == nil
	switch {
	case known && rejection.Faults != nil:
		rejection = g.invalid(in, newWebhook(body), "size", rejection.status, rejection.Faults)
	case !known && rejection.Faults == nil:
		rejection = tooSlow() // usher missed nobody anything
	}
	return nil, rejection
}

// parse turns a body into a webhook, or rejects it. A body that is being parsed needs many times
// its size in memory, so no more bodies are parsed at once than there are processors.
func (g *Gate) parse(in *arrival, body []byte) *answer {
	g.parsing <- struct{}{}
	defer func() { <-g.parsing }()
	w := newWebhook(body)
	value, fault := content.Parse(body)
	if fault != nil {
		return g.invalid(in, w, "json", http.StatusBadRequest, []content.Fault{*fault})
	}
	switch reason, faults := g.cfg.fill(w, value); reason {
	case "":
	case "type":
		if g.cfg.UnknownType != nil {
			g.cfg.UnknownType(w.Type)
		}
		return faulty(http.StatusUnprocessableEntity, faults...)
	default:
		return g.invalid(in, w, reason, http.StatusUnprocessableEntity, faults)
	}
	w.Header = g.cfg.forwardHeader(in.r, in.pathSecret)
	w.Gone = func() bool { return in.r.Context().Err() != nil }
	in.Webhook, in.Question = w, g.cfg.isQuestion(w.Type)
	return nil
}

// invalid notes that usher rejects the content of an arrival, and returns the answer. What may be a question is not
// kept: nobody asks it again.
func (g *Gate) invalid(in *arrival, w *Webhook, reason string, status int, faults []content.Fault) *answer {
	rejection := faulty(status, faults...)
	if in.Question = w.Type == "" && g.cfg.isQuestion(content.GuessType(w.Body)); in.Question {
		return rejection
	}
	w.Header = g.cfg.forwardHeader(in.r, in.pathSecret)
	in.Invalid = &Invalid{
		Webhook: *w, Cut: status == http.StatusRequestEntityTooLarge,
		Status: status, Reason: reason, Faults: content.First(faults, content.MaxFaults),
	}
	if in.From.IsValid() {
		in.Invalid.From = in.From.String()
	}
	return rejection
}

// take counts the arrival as in flight, and its delivery until it has ended. It comes after the body and its
// signature, so that nobody keeps others out with bodies that do not arrive.
func (g *Gate) take(in *arrival, p place) *answer {
	if g.places.take(p) {
		in.place = p
		return nil
	}
	whose := ""
	if p.to != nil && len(g.cfg.Receivers.All()) > 1 {
		whose = " for the receiver " + p.to.Name
	}
	return busy("too many webhooks at once" + whose)
}

// leave gives back what the arrival has of the gate.
func (g *Gate) leave(in *arrival) {
	g.bodies.release(&in.body)
	if in.place != (place{}) {
		g.places.leave(in.place)
	}
}

// ask sends a question to the receiver and returns its answer. Nothing is stored or remembered. Unlike a delivery,
// the try ends if the sender hangs up, or has waited for too long.
func (g *Gate) ask(in *arrival) *answer {
	var rejection *answer
	if in.Webhook.Receiver, rejection = g.cfg.whoAnswers(in.ctx, in.Webhook.Lane); rejection != nil {
		return rejection
	}
	if full := g.take(in, place{in.Webhook.Receiver, questions}); full != nil {
		return full
	}
	return g.cfg.ask(in.ctx, in.r.Context(), g.deliveries, in.Webhook)
}

// store hands a webhook to the inbox.
func (g *Gate) store(in *arrival) *answer {
	if full := g.take(in, place{kind: changes}); full != nil {
		return full
	}
	w := in.Webhook
	original, err := g.cfg.Store(in.ctx, w)
	switch {
	case errors.Is(err, ErrGone):
		return fail(statusHungUp, ErrGone.Error())
	case errors.Is(err, ErrFull):
		g.cfg.Log.Error("inbox is full, cannot store a webhook", "webhook", w.ID, "bytes", len(w.Body), "why", err)
		return busy(err.Error())
	case err != nil:
		g.cfg.Log.Error("cannot store a webhook", "webhook", w.ID, "err", err)
		return busy("the inbox can't be written right now")
	case original != "":
		return duplicateOf(original)
	}
	return &answer{status: http.StatusOK, Decision: queued, Webhook: w.ID}
}

// deliver delivers a webhook in its lane while the sender waits. A sender that has waited for too long gets its
// answer, the delivery goes on, and the copy that the sender sends next shares the outcome.
func (g *Gate) deliver(in *arrival) *answer {
	w := in.Webhook
	if full := g.take(in, place{w.Receiver, changes}); full != nil {
		return full
	}
	t, isCopy := g.lanes.send(w)
	if t == nil {
		return busy("too many webhooks of this tenant are waiting")
	}
	if !isCopy {
		in.turn = t
	}
	select {
	case <-t.done:
	case <-in.ctx.Done():
		in.late = true
		a := fail(http.StatusGatewayTimeout,
			fmt.Sprintf("the receiver did not accept it within %v; usher goes on trying", g.cfg.AnswerWithin))
		a.Webhook = w.ID
		return a
	}
	if isCopy && t.answer.Decision == forwarded {
		return duplicateOf(t.answer.Webhook)
	}
	return t.answer
}

// endLate waits for the end of a delivery whose sender has its answer already.
func (g *Gate) endLate(in *arrival) {
	<-in.turn.done
	a := in.turn.answer
	attrs := append(in.Webhook.attrs(), slog.String("decision", a.Decision), slog.Int("tries", a.Tries),
		slog.Duration("took", time.Since(in.At)))
	level := slog.LevelInfo
	if a.Decision == forwarded {
		g.missed.settle(in.Webhook.Digest)
	} else {
		g.missed.add(in.Webhook.Digest, in.At)
		level, attrs = slog.LevelWarn, append(attrs, slog.String("error", a.Error))
	}
	g.cfg.Log.LogAttrs(context.Background(), level, "delivery ended after its sender was answered", attrs...)
	g.leave(in)
}

// maxShownFaults is how many faults an Outcome has. The admin port keeps many outcomes in memory.
const maxShownFaults = 20

// noteAnswer copies the answer into the outcome.
func (in *arrival) noteAnswer(a *answer) {
	in.Took, in.Status, in.Decision, in.Why, in.Tries = time.Since(in.At), a.status, a.Decision, a.Error, a.Tries
	in.Faults = a.Faults[:min(len(a.Faults), maxShownFaults)]
	if a.Decision == duplicate {
		in.DuplicateOf = a.Webhook
	}
	if a.Receiver != nil {
		in.Outcome.Receiver = a.Receiver.Status
	}
}

// noteMissed notes a change that got a 5xx although its sender passed every check, and one that came in after all.
// A question is no change, and of a delivery that goes on nobody knows yet.
func (g *Gate) noteMissed(in *arrival) {
	var digest [sha256.Size]byte // zeros: the body did not arrive as a whole
	switch {
	case in.Webhook != nil:
		digest = in.Webhook.Digest
	case in.Invalid != nil:
		digest = in.Invalid.Digest
	}
	switch {
	case in.Question, in.late:
	case in.Decision == failed:
		g.missed.add(digest, in.At)
	case in.Status == http.StatusOK || in.Invalid != nil:
		g.missed.settle(digest)
	}
}

func (g *Gate) log(in *arrival) {
	level := slog.LevelInfo
	if in.Decision == failed || in.Invalid != nil || in.Question && in.Decision != forwarded {
		level = slog.LevelWarn
	}
	attrs := append(make([]slog.Attr, 0, 12),
		slog.String("decision", in.Decision), slog.Int("status", in.Status), slog.Duration("took", in.Took))
	add := func(isKnown bool, attr slog.Attr) {
		if isKnown {
			attrs = append(attrs, attr)
		}
	}
	add(in.From.IsValid(), slog.Any("from", in.From))
	if w := in.Webhook; w != nil {
		attrs = append(attrs, w.attrs()...)
		if w.Receiver != nil {
			add(len(g.cfg.Receivers.All()) > 1, slog.String("receiver", w.Receiver.Name))
		}
	} else if r := in.Invalid; r != nil {
		add(in.Stored, slog.Int64("id", in.id))
		attrs = append(attrs, r.attrs()...)
		attrs = append(attrs, slog.String("fault", r.Faults[0].Path), slog.Int("faults", content.Count(r.Faults)))
	} else {
		id := text.TraceID(in.r.Header)
		add(id != "", slog.String("trace_id", id))
	}
	add(in.DuplicateOf != "", slog.String("duplicate_of", in.DuplicateOf))
	add(in.Tries > 0, slog.Int("tries", in.Tries))
	add(in.Why != "", slog.String("error", in.Why))
	g.cfg.Log.LogAttrs(context.Background(), level, "webhook answered", attrs...)
}

// Platforms returns the platforms on which the gate remembers something about a tenant, or delivers
// something now. Call it only if Config.Store is nil.
func (g *Gate) Platforms(tenant string) []string { return g.lanes.platforms(tenant) }

// Shutdown waits until the webhooks in progress have an answer, and their deliveries have ended; the server waits
// until the answers are written. The gate rejects none meanwhile: the server has closed its listener, and a webhook
// that still comes would get no second chance. When ctx ends, deliveries are cancelled, also those that begin later,
// so that their senders get 503. Then Shutdown returns ctx's error if any was in progress.
func (g *Gate) Shutdown(ctx context.Context) error {
	defer g.missed.reportAll()
	context.AfterFunc(ctx, g.cancel)
	return g.places.wait(ctx)
}
