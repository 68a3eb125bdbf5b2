// Package proxy is the outbound half of usher: what a caller sends to /graphql on
// a local port goes to the billing service with a bearer token on it.
//
// The way of a call is: guard (may this caller use the port at all?), then
// httputil.ReverseProxy, then transport, which puts the token in and, on a 401,
// renews it and sends the call once more. Answers stream back untouched. What
// usher itself has to say is a GraphQL response, made in one place, problem.go.
package proxy

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"usher/internal/guard"
	"usher/internal/stdlog"
	"usher/internal/trace"
	"usher/tokens"
)

// Config is what a local port needs to know.
type Config struct {
	// Name of the port, in logs. Required.
	Name string
	// Target is the address that /graphql stands for. Required.
	Target *url.URL
	// Source of the tokens. Required.
	Source *tokens.Source
	// Upstream carries the calls; see NewUpstream. Required.
	Upstream http.RoundTripper
	// ReplayLimit is the largest request body that is kept for a second try after
	// a 401; larger ones stream, and are sent once. Zero keeps none.
	ReplayLimit int64
	// ReplayMemory is what all bodies that are kept may take, those of other ports
	// included. Required.
	ReplayMemory *Memory
	// Hosts says which Host headers are answered. Required.
	Hosts *guard.Hosts
	// Key returns what callers must know, one of several separated by commas; nil when
	// no key is demanded. One that returns the empty string lets nobody in.
	Key func() string
	// Log is told of every call that failed, at info or above. Required.
	Log *slog.Logger
	// Started is told of each call that begins, Finished of its end with the
	// status that the caller saw, Replayed of each second try after a 401. They
	// must not block; nil ones are not told.
	Started  func()
	Finished func(status int, took time.Duration)
	Replayed func()
}

// path is the only one that leaves.
const path = "/graphql"

// bodyPatience is how long a caller's body may stand still.
const bodyPatience = 30 * time.Second

// drainPatience is for the rest of a request that usher answers itself. net/http
// reads it, to keep the connection, and would wait for it as long as it takes.
const drainPatience = 5 * time.Second

// flushPatience is how long a part of an answer of known length may wait for the rest.
// Most come whole, and then head and body leave in one write. (One of unknown length is
// passed on at once.)
const flushPatience = 10 * time.Millisecond

// statusGone is counted for a caller that hung up before it was answered: nobody
// sees it. (nginx's number.)
const statusGone = 499

// Handler serves one local port.
type Handler struct {
	cfg      Config
	proxy    *httputil.ReverseProxy
	patience time.Duration // bodyPatience, but for tests
}

// New returns the handler of a local port.
func New(cfg Config) *Handler {
	h := &Handler{cfg: cfg, patience: bodyPatience}
	h.proxy = &httputil.ReverseProxy{
		Rewrite: h.rewrite,
		Transport: &transport{source: cfg.Source, upstream: cfg.Upstream,
			limit: cfg.ReplayLimit, memory: cfg.ReplayMemory, replayed: cfg.Replayed},
		ErrorHandler:  h.fail,
		FlushInterval: flushPatience,
		BufferPool:    buffers{},
		ErrorLog:      stdlog.New(cfg.Log.With("port", cfg.Name), slog.LevelInfo, "proxying"),
	}
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cfg.Started != nil {
		h.cfg.Started()
	}
	begin := time.Now()
	out := &outcome{ResponseWriter: w, no1xx: !r.ProtoAtLeast(1, 1)}
	defer func() {
		broken := recover()
		out.caller.payload.release()
		took := time.Since(begin)
		if h.cfg.Finished != nil {
			h.cfg.Finished(out.status, took)
		}
		h.log(r, out, took, broken != nil)
		if broken != nil {
			breakOff(w, r)
			panic(broken)
		}
	}()
	if p := h.check(r); p != nil {
		out.answer(p)
		return
	}
	out.passed = true
	// No protocol switch passes: an Upgrade (as Java's client sends for h2c) is
	// dropped here, before ReverseProxy would take it up.
	r.Header.Del("Upgrade")
	if r.ContentLength != 0 {
		out.caller.ReadCloser, out.caller.writer, out.caller.patience = r.Body, w, h.patience
		out.body = &out.caller
		r.Body = out.body
	}
	h.proxy.ServeHTTP(out, r)
}

// rewrite makes the call that leaves of the call that came. ReverseProxy has
// removed the hop-by-hop headers by now, those that Connection names included;
// the token is not in yet, so that no such trick can remove it.
func (h *Handler) rewrite(pr *httputil.ProxyRequest) {
	*pr.Out.URL = *h.cfg.Target // a copy that ReverseProxy has made for us
	// As it came: ReverseProxy has dropped what it could not parse.
	pr.Out.URL.RawQuery, pr.Out.URL.ForceQuery = pr.In.URL.RawQuery, pr.In.URL.ForceQuery
	if caller, ok := pr.In.Body.(*callerBody); ok && pr.Out.Body != nil {
		pr.Out.Body = outgoing{pr.Out.Body, caller}
	}
	pr.Out.Host = ""
	pr.Out.Trailer = nil
	for name := range pr.Out.Header {
		if private(name) {
			delete(pr.Out.Header, name)
		}
	}
}

// private says whether a header is the caller's and usher's own affair.
func private(name string) bool {
	if strings.Contains(name, "_") {
		// CGI and WSGI servers make X-Usher-Key of X_Usher_Key.
		name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		switch name {
		case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
			"Te", "Trailer", "Transfer-Encoding", "Content-Length", "Upgrade":
			return true
		}
	}
	switch name {
	case "Authorization", "X-Usher-Key", "Forwarded", "Via", "X-Real-Ip", "X-Original-Forwarded-For",
		"Te",             // a hop's own; ReverseProxy lets "trailers" pass
		"Expect",         // answered on this hop
		"Http2-Settings": // goes with Upgrade: h2c
		return true
	}
	return strings.HasPrefix(name, "X-Forwarded")
}

// fail is ReverseProxy's error handler: no answer of the service's can be had.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	out := w.(*outcome)
	switch {
	case r.Context().Err() == nil:
	case out.body != nil && !out.body.ended.Load():
		// Reading the body failed, which cancels the context, and which of the two
		// comes first up here is a race. The caller may still be there to be told.
		err = &bodyError{errors.New("it ended too early")}
	default:
		// The caller hung up, or the server is being cut off: nobody listens.
		out.WriteHeader(statusGone)
		return
	}
	out.answer(problemOf(err))
}

// log writes the one line that a call gets: at info where it failed.
func (h *Handler) log(r *http.Request, out *outcome, took time.Duration, broken bool) {
	level, message := slog.LevelInfo, ""
	switch {
	case out.status == statusGone || broken && r.Context().Err() != nil:
		message = "caller hung up"
	case broken:
		message = "the service's answer ended too early"
	case out.problem != nil:
		message = "call failed"
	case out.status >= 500 || out.status == http.StatusUnauthorized:
		message = "service answered with an error"
	default:
		level, message = slog.LevelDebug, "call answered"
	}
	if !h.cfg.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("port", h.cfg.Name), slog.String("method", r.Method), slog.Int("status", out.status),
		slog.Duration("took", took.Round(time.Microsecond)), slog.String("from", r.RemoteAddr),
	}
	if p := out.problem; p != nil {
		attrs = append(attrs, slog.String("code", p.code), slog.String("why", p.message))
		if p.code == "HOST_REFUSED" {
			attrs = append(attrs, slog.String("host", r.Host))
		}
	}
	if level >= slog.LevelInfo {
		attrs = append(attrs, whichCall(r, out)...)
	}
	h.cfg.Log.LogAttrs(r.Context(), level, message, attrs...)
}

// whichCall says which one failed, as far as the caller told.
func whichCall(r *http.Request, out *outcome) (attrs []slog.Attr) {
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	if out.passed { // what strangers send is not looked into
		add("operation", operation(r, &out.caller.payload))
	}
	add("trace_id", trace.ID(r.Header))
	add("request_id", requestID(r.Header))
	return attrs
}

// breakOff sees to it that an answer that broke off does not look whole. From
// HTTP/1.1 on, net/http does by not ending the chunks; a caller of HTTP/1.0 takes
// the end of the connection for the end of the answer, so it has to be a reset.
//
// What there is of the answer is sent, be it the status alone: many clients take a
// connection that ends before any answer for leave to send the call again.
func breakOff(w http.ResponseWriter, r *http.Request) {
	if r.ProtoAtLeast(1, 1) {
		_ = http.NewResponseController(w).Flush() // the caller may be gone
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = tcp.SetLinger(0) // on a socket file there is no reset
	}
	conn.Close()
}

// outcome is the ResponseWriter of one call; it remembers what the caller saw.
type outcome struct {
	http.ResponseWriter
	no1xx   bool // the caller does not know 1xx answers
	passed  bool // the guard let the call in
	caller  callerBody
	body    *callerBody // caller, or nil when it sends none
	status  int
	problem *problem // when the answer is usher's own
}

func (o *outcome) WriteHeader(status int) {
	if status < 200 { // not the answer yet
		if !o.no1xx {
			o.ResponseWriter.WriteHeader(status)
		}
		return
	}
	if o.status == 0 {
		o.status = status
	}
	// net/http would guess a type that the service did not give.
	if h := o.Header(); h["Content-Type"] == nil {
		h["Content-Type"] = nil
	}
	o.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find Flush.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }

func (o *outcome) answer(p *problem) {
	o.problem = p
	// Where it can't be set (a test's recorder) there is no connection to hold up.
	_ = http.NewResponseController(o.ResponseWriter).SetReadDeadline(time.Now().Add(drainPatience))
	p.write(o)
}

// buffers lends ReverseProxy what it copies answers with: as much as Linux keeps for a
// connection by default until somebody reads it, four times of what ReverseProxy would
// take by itself: one of 100 KB needs 9 system calls instead of 16.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([128 << 10]byte) }}

func (buffers) Get() []byte  { return bufferPool.Get().(*[128 << 10]byte)[:] }
func (buffers) Put(b []byte) { bufferPool.Put((*[128 << 10]byte)(b)) }
