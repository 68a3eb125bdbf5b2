// Package proxy is the outbound part of usher: what a caller sends to /graphql on a local
// port goes to the billing service with a bearer token.
//
// A call passes three stations: guard (may this caller use the port at all?), then
// httputil.ReverseProxy, then transport, which adds the token and, on a 401, renews it and
// sends the call once more. Answers stream back unchanged. usher's own answers are GraphQL
// responses, made in one place, problem.go.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"usher/internal/guard"
	"usher/internal/logs"
	"usher/internal/wire"
	"usher/tokens"
)

// Config is what a local port needs to know.
type Config struct {
	// Name is the port's name in logs. Required.
	Name string
	// Target is the service's address of /graphql. Required.
	Target *url.URL
	// Source provides the tokens. Required.
	Source *tokens.Source
	// Upstream carries the calls. Required.
	Upstream interface {
		Do(*http.Request, wire.Call) (*http.Response, error)
	}
	// ReplayLimit is the largest request body that is kept for a second try after
	// a 401; larger ones stream, and are sent once. Zero keeps none.
	ReplayLimit int64
	// ReplayMemory limits what all kept bodies may take, over all ports. Required.
	ReplayMemory *Memory
	// AnswerMemory does so for the answers that callers of HTTP/1.0 wait for. Required.
	AnswerMemory *Memory
	// Hosts says which Host headers are answered. Required.
	Hosts *guard.Hosts
	// Key returns the key that callers must send, or several separated by commas. Nil: no key
	// is required. A func that returns the empty string lets no caller in.
	Key func() string
	// Log gets a line for every failed call, at info or above. Required.
	Log *slog.Logger
	// Started is called for each call that begins, Finished at its end with the status that
	// the caller saw, Replayed for each second try after a 401. They must not block. Required.
	Started  func()
	Finished func(status int, took time.Duration)
	Replayed func()
}

// path is the only path that usher sends to the service.
const path = "/graphql"

// bodyPatience is how long a caller's body may stand still.
const bodyPatience = 30 * time.Second

// drainPatience is the time for the rest of a request that was answered before its end. net/http
// reads that rest, and would wait for it without a limit.
const drainPatience = 5 * time.Second

// flushPatience is how long a part of an answer of known length waits for the rest. Most
// answers arrive in one piece; head and body then leave in one write. (An answer of unknown
// length is passed on at once.)
const flushPatience = 10 * time.Millisecond

// statusGone is counted for a caller that hung up before the answer, or whom usher cut off. No
// caller ever gets it. (nginx uses the same number.)
const statusGone = 499

// Handler serves one local port.
type Handler struct {
	cfg      Config
	proxy    *httputil.ReverseProxy
	patience time.Duration // bodyPatience; shorter in tests
	drain    time.Duration // drainPatience; shorter in tests
}

// New returns the handler of a local port.
func New(cfg Config) *Handler {
	h := &Handler{cfg: cfg, patience: bodyPatience, drain: drainPatience}
	h.proxy = &httputil.ReverseProxy{
		Rewrite:        h.rewrite,
		Transport:      &transport{cfg},
		ModifyResponse: h.complete,
		ErrorHandler:   h.fail,
		FlushInterval:  flushPatience,
		BufferPool:     buffers{},
		ErrorLog:       logs.ForLibrary(cfg.Log.With("port", cfg.Name), slog.LevelInfo, "proxying"),
	}
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.cfg.Started()
	begin := time.Now()
	out := &outcome{ResponseWriter: w, request: r}
	defer func() {
		broken := recover()
		took := time.Since(begin)
		h.cfg.Finished(out.status, took)
		h.log(r, out, took, broken != nil)
		out.caller.end(r, h.drain)
		if broken == nil {
			out.end()
			return
		}
		// usher first sends what it has of the answer, even if that is only the status. Many
		// clients send a call again if the connection ends before any answer.
		if out.status != statusGone {
			_ = http.NewResponseController(w).Flush() // fails if the caller has gone
		}
		panic(broken) // net/http breaks the answer off
	}()
	if p := h.check(r); p != nil {
		h.answer(out, p)
		return
	}
	out.passed = true
	// usher never switches protocols. It drops an Upgrade (Java's client sends one for h2c)
	// before ReverseProxy acts on it.
	r.Header.Del("Upgrade")
	if r.ContentLength != 0 {
		out.caller.ReadCloser, out.caller.writer, out.caller.patience = r.Body, w, h.patience
		r.Body = &out.caller
	}
	h.proxy.ServeHTTP(out, r)
}

// check returns why a request may not pass, or nil. It reads nothing of the body.
func (h *Handler) check(r *http.Request) *problem {
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		// Bytes that follow a CONNECT must not be read as a request.
		return &problem{status: http.StatusMethodNotAllowed, code: "METHOD_REFUSED", close: true,
			message: r.Method + " is not allowed on this port"}
	case !h.cfg.Hosts.Allowed(r.Host):
		return &problem{status: http.StatusMisdirectedRequest, code: "HOST_REFUSED",
			message: "this Host is not allowed: call the port by its address, or add the name to USHER_ALLOWED_HOSTS"}
	case guard.FromBrowser(r.Header) || guard.Navigation(r.Header):
		return &problem{status: http.StatusForbidden, code: "BROWSER_REFUSED",
			message: "this call comes from a web browser, and client credentials are not for browsers"}
	case h.cfg.Key != nil && !guard.HasKey(r.Header, h.cfg.Key()):
		return &problem{status: http.StatusUnauthorized, code: "KEY_REQUIRED",
			message: "the key of this port is missing or wrong: send it as 'Authorization: Bearer KEY', as the password of Basic authentication, or as 'X-Usher-Key: KEY'"}
	// Exactly as it was sent: RawPath is set if the escaped form differs.
	case r.URL.Path != path || r.URL.RawPath != "":
		return &problem{status: http.StatusNotFound, code: "NOT_FOUND",
			message: "only " + path + " is served here"}
	}
	return nil
}

// rewrite turns the incoming call into the outgoing one. ReverseProxy has already removed the
// hop-by-hop headers, also those that Connection names. The token is added later, so that no
// Connection header can remove it.
func (h *Handler) rewrite(pr *httputil.ProxyRequest) {
	*pr.Out.URL = *h.cfg.Target // a copy that ReverseProxy has made for us
	// Exactly as it came: ReverseProxy has dropped the parts that it could not parse.
	pr.Out.URL.RawQuery, pr.Out.URL.ForceQuery = pr.In.URL.RawQuery, pr.In.URL.ForceQuery
	if pr.Out.Body != nil {
		pr.Out.Body = pr.In.Body // Go 1.26 has wrapped it, so that transport could not see what it is
	}
	pr.Out.Host = ""
	pr.Out.Trailer = nil
	for name := range pr.Out.Header {
		if private(name) {
			delete(pr.Out.Header, name)
		}
	}
}

// private reports whether a header is only between the caller and usher.
func private(name string) bool {
	if strings.Contains(name, "_") {
		// CGI and WSGI servers turn X_Usher_Key into X-Usher-Key.
		name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		switch name {
		case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
			"Te", "Trailer", "Transfer-Encoding", "Content-Length", "Upgrade":
			return true
		}
	}
	switch name {
	case "Authorization", "X-Usher-Key", "Forwarded", "Via", "X-Real-Ip", "X-Original-Forwarded-For",
		"Te",             // hop-by-hop; ReverseProxy lets "trailers" pass
		"Expect",         // usher answers it itself
		"Http2-Settings": // belongs to Upgrade: h2c
		return true
	}
	return strings.HasPrefix(name, "X-Forwarded")
}

// fail is ReverseProxy's error handler: there is no answer from the service to pass on.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	out := w.(*outcome)
	switch {
	case r.Context().Err() == nil:
	case cutOff(r):
		out.status = statusGone
		panic(http.ErrAbortHandler)
	case out.caller.ReadCloser != nil && !out.caller.ended.Load():
		// Reading the body failed, which also cancels the context. It is a race which of the
		// two errors arrives here. The caller may still be connected and get the answer.
		err = &bodyError{errors.New("it ended too early")}
	default:
		// The caller hung up: nobody reads the answer.
		out.WriteHeader(statusGone)
		return
	}
	h.answer(out, problemOf(err))
}

// answer is usher's own.
func (h *Handler) answer(out *outcome, p *problem) {
	out.problem = p
	setPatience(out.ResponseWriter, h.drain)
	p.write(out)
}

// cutOff reports whether usher ends and cuts the call off.
func cutOff(r *http.Request) bool { return context.Cause(r.Context()) == guard.ErrCutOff }

// outcome is the ResponseWriter of one call; it remembers what the caller saw.
type outcome struct {
	http.ResponseWriter
	request *http.Request
	toClose bool       // the end of the connection is the end of the answer
	passed  bool       // the guard let the call in
	caller  callerBody // without a ReadCloser if there is no body
	status  int
	problem *problem // if the answer is usher's own
}

func (o *outcome) WriteHeader(status int) {
	if status < 200 { // not the answer yet
		if o.request.ProtoAtLeast(1, 1) { // others do not understand it
			o.ResponseWriter.WriteHeader(status)
		}
		return
	}
	if o.status == 0 {
		o.status = status
	}
	h := o.Header()
	// Without this net/http would guess a type that the service did not send.
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil
	}
	// To keep the connection, net/http would now discard a part of the body, and the service
	// would get one with a hole in it.
	if o.caller.early() {
		h.Set("Connection", "close")
	}
	o.begin(h)
	o.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find Flush.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// buffers lends ReverseProxy the buffers for copying answers. They are as large as Linux's
// default receive buffer, and four times as large as ReverseProxy's own: an answer of 100 KB
// needs 9 system calls instead of 16.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([128 << 10]byte) }}

func (buffers) Get() []byte  { return bufferPool.Get().(*[128 << 10]byte)[:] }
func (buffers) Put(b []byte) { bufferPool.Put((*[128 << 10]byte)(b)) }
