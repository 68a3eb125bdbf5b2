package webhookgate

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"usher/internal/trace"
	"usher/webhookgate/content"
	"usher/webhookgate/signature"
)

// A Gate is the http.Handler that webhooks are posted to.
type Gate struct {
	cfg       Config
	rules     *content.Rules
	hmac      signature.HMAC
	receivers *receivers
	share     int // how many of the places in flight each receiver may use
	lanes     *passThrough
	jitter    func(ceiling time.Duration) time.Duration // any time below ceiling
	readers   chan struct{}                             // has one element for each body that is being parsed and validated

	deliveries context.Context    // of all deliveries, not of a request: they go on if a sender hangs up
	cancel     context.CancelFunc // ends deliveries

	mu       sync.Mutex // guards what follows
	inflight int
	closing  bool
	idle     chan struct{} // closed once closing is set and nothing is in flight
}

// A visit is one request, and what is known about it so far.
type visit struct {
	w          http.ResponseWriter
	r          *http.Request
	from       netip.Addr // the sender's; invalid if unknown
	pathSecret string     // the path's last segment, which may be a secret, as it was sent
	admitted   bool       // it holds a place in flight
	receiver   *receiver  // gets the webhook; nil: no receiver, or not known yet
	taken      bool       // it also holds one of the receiver's places
	webhook    *Webhook   // set once it has passed every check
}

// ServeHTTP answers one request.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A sender that is refused before its body was read has this long to finish sending it.
	// (An error means that w is not a connection, and then nothing can hang.)
	err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainPatience))
	a := g.answer(w, r)
	if err == nil && a.status >= 400 && a.header["Connection"] != "close" {
		drain(w, r)
	}
}

// answer answers one request, reports it and logs it.
func (g *Gate) answer(w http.ResponseWriter, r *http.Request) *answer {
	start := time.Now()
	v := &visit{w: w, r: r}
	defer g.leave(v)
	a := g.handle(v)
	took := time.Since(start)
	g.cfg.Answered(v.outcome(a, start, took))
	a.write(w)
	g.report(v, a, took)
	return a
}

// handle is the whole way of a webhook, top to bottom. The first station that objects answers
// the sender.
func (g *Gate) handle(v *visit) *answer {
	if no := g.route(v); no != nil {
		return no
	}
	if no := g.checkAddress(v); no != nil {
		return no
	}
	if no := g.checkToken(v); no != nil {
		return no
	}
	if no := g.enter(v); no != nil {
		return no
	}
	body, no := readBody(v.w, v.r, g.cfg.MaxBody)
	if no != nil {
		return no
	}
	if no := g.checkSignature(v.r.Header, body); no != nil {
		return no
	}
	if v.webhook, no = g.read(v, body); no != nil {
		return no
	}
	question := g.asks(v.webhook.Type)
	if g.cfg.Keep != nil && !question {
		return g.keep(v.webhook)
	}
	if no := g.take(v); no != nil {
		return no
	}
	if question {
		return g.ask(v)
	}
	return g.lanes.send(v.receiver, v.webhook)
}

// read turns a body into a webhook, or refuses it. While it is parsed a body needs many times
// its size in memory, so no more bodies are parsed at once than there are processors.
func (g *Gate) read(v *visit, body []byte) (*Webhook, *answer) {
	g.readers <- struct{}{}
	defer func() { <-g.readers }()
	value, fault := content.Parse(body)
	if fault != nil {
		return nil, faulty(http.StatusBadRequest, *fault)
	}
	if faults := g.rules.Faults(value); len(faults) > 0 {
		return nil, faulty(http.StatusUnprocessableEntity, faults...)
	}
	typ := content.StringAt(value, "type")
	lane := laneOf(typ, value)
	if v.receiver = g.receivers.takes(lane.Platform); v.receiver == nil && !g.keepsAnyway(typ) {
		return nil, unclaimed(lane.Platform)
	}
	return g.newWebhook(v, body, typ, lane), nil
}

// Forget drops what is remembered about a tenant, so that its next snapshot is delivered in any
// case. It reports whether anything was remembered.
func (g *Gate) Forget(platform, tenant string) bool { return g.lanes.forget(platform, tenant) }

// Platforms returns the platforms on which something is remembered about a tenant.
func (g *Gate) Platforms(tenant string) []string { return g.lanes.platforms(tenant) }

// route lets through a POST to the gate's path, or to one more segment if secrets are
// configured.
func (g *Gate) route(v *visit) *answer {
	if m := v.r.Method; m == http.MethodConnect || m == http.MethodTrace {
		return reject(http.StatusMethodNotAllowed, m+" is never accepted here").
			with("Allow", http.MethodPost).with("Connection", "close")
	}
	path := v.r.URL.EscapedPath()
	if path != g.cfg.Path {
		segment, below := strings.CutPrefix(path, strings.TrimSuffix(g.cfg.Path, "/")+"/")
		if !below || strings.Contains(segment, "/") || g.cfg.Tokens == nil {
			return reject(http.StatusNotFound, "there is nothing at this path")
		}
		if segment == "" {
			return noToken() // in "{path}/" the secret is empty
		}
		v.pathSecret = segment
	}
	if v.r.Method != http.MethodPost {
		return reject(http.StatusMethodNotAllowed, "webhooks are sent with POST").with("Allow", http.MethodPost)
	}
	return nil
}

// enter takes a place in flight. The visit holds it until the answer is written, even if the
// sender has hung up, so that it limits deliveries, too.
func (g *Gate) enter(v *visit) *answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closing:
		return shuttingDown()
	case g.inflight >= g.cfg.MaxInflight:
		return busy("too many webhooks at once; please send this one again")
	}
	g.inflight++
	v.admitted = true
	return nil
}

func (g *Gate) leave(v *visit) {
	if !v.admitted {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inflight--
	if v.taken {
		v.receiver.inflight--
	}
	if g.closing && g.inflight == 0 {
		close(g.idle)
	}
}

func shuttingDown() *answer {
	return busy("usher is shutting down; please send this webhook again")
}

// Shutdown refuses new webhooks and waits until those in progress are answered. If ctx ends
// first, it cancels their deliveries, their senders get 503, and it returns ctx's error.
func (g *Gate) Shutdown(ctx context.Context) error {
	g.mu.Lock()
	if !g.closing {
		g.closing = true
		if g.inflight == 0 {
			close(g.idle)
		}
	}
	g.mu.Unlock()

	select {
	case <-g.idle:
		return nil
	default: // checked first: if nothing is in progress it does not matter that ctx has ended
	}
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
	}
	g.cancel()
	select {
	case <-g.idle:
	case <-time.After(lastWords):
	}
	return ctx.Err()
}

// lastWords is how long senders of cancelled deliveries have to read their answer: they should
// know that their webhook was not delivered.
const lastWords = time.Second

func (g *Gate) report(v *visit, a *answer, took time.Duration) {
	level := slog.LevelInfo
	if a.Decision == failed {
		level = slog.LevelWarn
	}
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs, slog.String("decision", a.Decision), slog.Int("status", a.status), slog.Duration("took", took))
	if v.from.IsValid() {
		attrs = append(attrs, slog.String("from", v.from.String()))
	}
	if w := v.webhook; w != nil {
		attrs = append(attrs, w.attrs()...)
	} else if id := trace.ID(v.r.Header); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if v.receiver != nil && len(g.receivers.all) > 1 {
		attrs = append(attrs, slog.String("receiver", v.receiver.Name))
	}
	if a.Decision == duplicate {
		attrs = append(attrs, slog.String("duplicate_of", a.Webhook))
	}
	if a.Tries > 0 {
		attrs = append(attrs, slog.Int("tries", a.Tries))
	}
	if a.Error != "" {
		attrs = append(attrs, slog.String("error", a.Error))
	}
	g.cfg.Log.LogAttrs(context.Background(), level, "webhook answered", attrs...)
}
