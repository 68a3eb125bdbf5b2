package webhookgate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"usher/internal/content"
	"usher/internal/guard"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/internal/text"
)

// A Gate is the http.Handler that webhooks are posted to.
type Gate struct {
	cfg    Config
	lanes  *passThrough                              // nil: Config.Store stores the webhooks
	jitter func(ceiling time.Duration) time.Duration // returns a random time below ceiling
	// parsing has one element for each body that is being parsed and validated.
	parsing chan struct{}

	// share is how many webhooks may wait for one receiver, so that a receiver that hangs does not
	// use up the places in flight of the others.
	share int

	// deliveries is the context of all deliveries: unlike a request's it does not end if a sender hangs up.
	deliveries context.Context
	cancel     context.CancelFunc // ends deliveries

	bodies bodies
	missed missed

	mu       sync.Mutex // guards what follows
	inflight int
	waiting  map[*receiver.Receiver]int // how many of them wait for each receiver
	idle     chan struct{}              // closed when nothing is in flight; nil: nobody waits for that
}

// An arrival is one request, and what is known about it so far.
type arrival struct {
	w          http.ResponseWriter
	r          *http.Request
	pathSecret string // the path's last segment as it was sent, if it may be a secret
	body       body
	admitted   bool  // it is counted in Gate.inflight
	waits      bool  // it is counted in Gate.waiting
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

// decide handles a request and reports its outcome. After that the request is no longer in flight, and
// usher holds nothing of it but the answer: a sender may take minutes to read it.
func (g *Gate) decide(w http.ResponseWriter, r *http.Request) *answer {
	in := &arrival{w: w, r: r, Outcome: Outcome{At: time.Now(), From: peerAddr(r)}}
	defer g.leave(in)
	a := g.handle(in)
	in.Stored = a.Decision == queued
	if in.Invalid != nil && g.cfg.Invalid != nil {
		in.id = g.cfg.Invalid(in.Invalid)
		if in.Stored = in.id != 0; !in.Stored && g.cfg.Store != nil {
			a = busy("the inbox can't be written right now; please send this webhook again") // with a 4xx nobody would
		}
	}
	in.noteAnswer(a)
	g.noteMissed(in)
	if g.cfg.Answered != nil {
		g.cfg.Answered(in.Outcome)
	}
	g.report(in)
	return a
}

// noteMissed notes a change that got a 5xx although its sender passed every check, and one that came in after all.
// A question is no change, and nobody sends it again.
func (g *Gate) noteMissed(in *arrival) {
	var digest [sha256.Size]byte // zeros: the body did not arrive as a whole
	switch {
	case in.Webhook != nil && g.isQuestion(in.Webhook.Type):
		return
	case in.Webhook != nil:
		digest = in.Webhook.Digest
	case in.Invalid != nil:
		digest = in.Invalid.Digest
	}
	if in.Decision == failed {
		in.Missed = true
		g.missed.add(digest, in.At)
	} else if in.Status == http.StatusOK || in.Invalid != nil {
		g.missed.settle(digest)
	}
}

// handle is the whole way of a webhook, from top to bottom. The first check that fails returns the
// answer to the sender.
func (g *Gate) handle(in *arrival) *answer {
	for _, check := range []func(*arrival) *answer{g.route, g.checkPage, g.checkToken} {
		if rejection := check(in); rejection != nil {
			return rejection
		}
	}
	body, rejection := g.readBody(in)
	if rejection != nil && rejection.status == http.StatusRequestEntityTooLarge && g.vouched() {
		return g.invalid(in, in.newWebhook(body), "size", rejection)
	}
	if rejection != nil {
		return rejection
	}
	if rejection := g.checkSignature(in, body); rejection != nil {
		return rejection
	}
	if rejection := g.admit(in); rejection != nil {
		return rejection
	}
	if in.Webhook, rejection = g.read(in, body); rejection != nil {
		return rejection
	}
	question := g.isQuestion(in.Webhook.Type)
	if g.cfg.Store != nil && !question {
		return g.store(in.Webhook)
	}
	if rejection := g.admitTo(in.Webhook.Receiver, in); rejection != nil {
		return rejection
	}
	if question {
		return g.ask(in)
	}
	if err := in.Webhook.checkHeard(); err != nil {
		return busy(err.Error() + "; please send this webhook again")
	}
	return g.lanes.send(in.Webhook)
}

// read turns a body into a webhook, or rejects it. A body that is being parsed needs many times
// its size in memory, so no more bodies are parsed at once than there are processors.
func (g *Gate) read(in *arrival, body []byte) (*Webhook, *answer) {
	g.parsing <- struct{}{}
	defer func() { <-g.parsing }()
	w := in.newWebhook(body)
	value, fault := content.Parse(body)
	if fault != nil {
		return nil, g.invalid(in, w, "json", faulty(http.StatusBadRequest, *fault))
	}
	w.Type = content.TypeOf(value)
	platform, tenant, certain := content.CertainTenant(value)
	if certain {
		w.Lane = LaneName{Platform: platform, Tenant: tenant}
	}
	question := g.isQuestion(w.Type)
	if faults := g.cfg.Rules.Faults(value); len(faults) > 0 {
		rejection := faulty(http.StatusUnprocessableEntity, faults...)
		switch {
		case w.Type != "" && !g.cfg.Rules.Accept(w.Type):
			if g.cfg.UnknownType != nil {
				g.cfg.UnknownType(w.Type)
			}
		case !question:
			rejection = g.invalid(in, w, "schema", rejection)
			in.Invalid.Faults = content.First(faults, content.MaxFaults)
		}
		return nil, rejection
	}
	if g.cfg.Store != nil && !certain && w.Type == "" { // possible if * is among the types
		return nil, g.invalid(in, w, "schema", faulty(http.StatusUnprocessableEntity, content.Fault{
			Path:    "/type",
			Message: "must name the event, as there is no tenant",
		}))
	}
	w.Receiver = g.cfg.Receivers.For(platform)
	switch {
	case w.Receiver == nil && question:
		return nil, unclaimed(platform)
	case w.Receiver == nil && !g.cfg.StoreUnclaimed:
		return nil, g.invalid(in, w, "platform", unclaimed(platform))
	case !certain: // the webhook names no tenant; a code that cannot be read is one of the faults above
		w.Lane = LaneName{Platform: platform, Type: w.Type}
	}
	w.Header = g.forwardHeader(in, w.Receiver)
	if g.cfg.StoodStill != nil {
		w.Heard = func() (stoodStill, gone bool) {
			stoodStill = g.cfg.StoodStill(w.Received)
			return stoodStill, stoodStill && guard.Gone(in.r)
		}
	}
	// Only a TenantProvisioningChange with a tenant is known to be a snapshot. Of any other event the
	// same bytes may mean two changes. A question changes nothing.
	w.Snapshot = w.Type == content.TenantProvisioningChange && certain && !question
	if w.Snapshot && g.cfg.Store != nil {
		w.State = snapshot.Of(value).Stored(platform, tenant, w.ID)
	}
	return w, nil
}

func unclaimed(platform string) *answer {
	message := fmt.Sprintf("is %q, and no receiver takes webhooks of this platform", text.Clip(platform, maxShown))
	if platform == "" {
		message = "is missing, and no receiver takes webhooks without a platform"
	}
	return faulty(http.StatusUnprocessableEntity, content.Fault{
		Path:    "/payload/tenant/platform/code",
		Message: message,
	})
}

// route accepts a POST to the gate's path. If secrets are configured, the path may have one more
// segment, the secret.
func (g *Gate) route(in *arrival) *answer {
	if m := in.r.Method; m == http.MethodConnect || m == http.MethodTrace {
		return reject(http.StatusMethodNotAllowed, m+" is never accepted here").
			with("Allow", http.MethodPost).with("Connection", "close")
	}
	if path := guard.SentPath(in.r.URL); path != g.cfg.Path {
		segment, below := strings.CutPrefix(path, strings.TrimSuffix(g.cfg.Path, "/")+"/")
		if !below || strings.Contains(segment, "/") || g.cfg.Tokens == nil {
			return reject(http.StatusNotFound, "there is nothing at this path")
		}
		if segment == "" {
			return wrongSecret() // the path is "{path}/": the secret is empty
		}
		in.pathSecret = segment
	}
	if in.r.Method != http.MethodPost {
		return reject(http.StatusMethodNotAllowed, "webhooks are sent with POST").with("Allow", http.MethodPost)
	}
	return nil
}

// admit counts the arrival as in flight until there is an answer, even if the sender has hung up. So
// MaxInflight limits deliveries, too. It comes after the body and its signature, so that nobody keeps others out with
// bodies that do not arrive.
func (g *Gate) admit(in *arrival) *answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inflight >= g.cfg.MaxInflight {
		return busy("too many webhooks at once; please send this one again")
	}
	g.inflight++
	in.admitted = true
	return nil
}

// admitTo counts the arrival as one that waits for a receiver, unless the receiver has its share.
func (g *Gate) admitTo(to *receiver.Receiver, in *arrival) *answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting[to] >= g.share {
		return busy(fmt.Sprintf("too many webhooks at once for the receiver %s; please send this one again", to.Name))
	}
	g.waiting[to]++
	in.waits = true
	return nil
}

// leave undoes admit and admitTo, and gives back the memory of the body.
func (g *Gate) leave(in *arrival) {
	g.bodies.release(&in.body)
	if !in.admitted {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inflight--
	if in.waits {
		g.waiting[in.Webhook.Receiver]--
	}
	if g.idle != nil && g.inflight == 0 {
		close(g.idle)
		g.idle = nil
	}
}

func shuttingDown() *answer {
	return busy("usher is shutting down; please send this webhook again")
}

// Shutdown waits until the webhooks in progress have an answer; the server waits until it is written. The
// gate rejects none meanwhile: the server has closed its listener, and a webhook that still comes would get
// no second chance. When ctx ends, deliveries are cancelled, also those that begin later, so that their
// senders get 503. Then Shutdown returns ctx's error if any was in progress.
func (g *Gate) Shutdown(ctx context.Context) error {
	defer g.missed.reportAll()
	context.AfterFunc(ctx, g.cancel)
	idle := g.whenIdle()
	select {
	case <-idle:
		return nil
	default: // checked first: if nothing is in progress, it does not matter that ctx has ended
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-idle:
	case <-time.After(lastWords):
	}
	return ctx.Err()
}

// whenIdle returns a channel that is closed when nothing is in flight.
func (g *Gate) whenIdle() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inflight == 0 {
		none := make(chan struct{})
		close(none)
		return none
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	return g.idle
}

// lastWords is how long Shutdown waits until cancelled deliveries have an answer. Their senders should
// know that their webhooks were not delivered.
const lastWords = time.Second

func (g *Gate) report(in *arrival) {
	level := slog.LevelInfo
	if in.Decision == failed || in.Invalid != nil {
		level = slog.LevelWarn
	}
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs,
		slog.String("decision", in.Decision),
		slog.Int("status", in.Status),
		slog.Duration("took", in.Took))
	if in.From.IsValid() {
		attrs = append(attrs, slog.String("from", in.From.String()))
	}
	if w := in.Webhook; w != nil {
		attrs = append(attrs, w.attrs()...)
		if w.Receiver != nil && len(g.cfg.Receivers.All()) > 1 {
			attrs = append(attrs, slog.String("receiver", w.Receiver.Name))
		}
	} else if r := in.Invalid; r != nil {
		if in.Stored {
			attrs = append(attrs, slog.Int64("id", in.id))
		}
		attrs = append(attrs, r.attrs()...)
		attrs = append(attrs, slog.String("fault", r.Faults[0].Path), slog.Int("faults", content.Count(r.Faults)))
	} else if id := text.TraceID(in.r.Header); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if in.DuplicateOf != "" {
		attrs = append(attrs, slog.String("duplicate_of", in.DuplicateOf))
	}
	if in.Tries > 0 {
		attrs = append(attrs, slog.Int("tries", in.Tries))
	}
	if in.Why != "" {
		attrs = append(attrs, slog.String("error", in.Why))
	}
	g.cfg.Log.LogAttrs(context.Background(), level, "webhook answered", attrs...)
}

// ErrFull is Config.Store's error if the inbox has no room. Any other error means that the webhook
// could not be stored for now.
var ErrFull = errors.New("the inbox is full")

var (
	// ErrUnheard says that a webhook is not taken in because its sender has gone while usher stood still.
	ErrUnheard = errors.New("usher stood still, and the sender has gone meanwhile: it may have sent something newer")
	// ErrOvertaken says that a webhook is not taken in because a later one of its tenant was, while usher
	// stood still; or because this very one was, and the sender has gone.
	ErrOvertaken = errors.New("usher stood still, and this webhook or a later one of the tenant was taken in meanwhile")
)

// checkHeard returns ErrUnheard if the sender has gone while usher stood still.
func (w *Webhook) checkHeard() error {
	if w.Heard != nil {
		if _, gone := w.Heard(); gone {
			return ErrUnheard
		}
	}
	return nil
}

func (g *Gate) store(w *Webhook) *answer {
	original, err := g.cfg.Store(w)
	switch {
	case errors.Is(err, ErrUnheard), errors.Is(err, ErrOvertaken):
		g.cfg.Log.Warn("webhook not taken in", "webhook", w.ID, "why", err)
		return busy(err.Error() + "; please send this webhook again")
	case errors.Is(err, ErrFull):
		g.cfg.Log.Error("inbox is full, cannot store a webhook", "webhook", w.ID, "bytes", len(w.Body), "why", err)
		return busy(err.Error() + "; please send this webhook again later")
	case err != nil:
		g.cfg.Log.Error("cannot store a webhook", "webhook", w.ID, "err", err)
		return busy("the inbox can't be written right now; please send this webhook again")
	case original != "":
		return duplicateOf(original)
	}
	return &answer{status: http.StatusOK, Decision: queued, Webhook: w.ID}
}
