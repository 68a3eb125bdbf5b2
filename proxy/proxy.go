// Package proxy is the outbound part of usher: what a caller sends to /graphql on a local port goes to the billing
// service with a bearer token. Handler.check decides whether the caller may use the port at all. httputil.ReverseProxy
// passes the call on, and streams the answer back unchanged. transport adds the token and, on a 401, renews it and
// sends the call once more.
package proxy

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"usher/internal/guard"
	"usher/internal/logs"
)

const (
	// path is the only path that usher sends to the service.
	path = "/graphql"

	// bodyPatience is how long usher waits for the next bytes of a caller's body.
	bodyPatience = 30 * time.Second

	// drainPatience is how long a caller has to send the rest of a request that is already answered.
	// net/http reads that rest, and would wait for it without a limit.
	drainPatience = 5 * time.Second

	// flushPatience is how long usher holds back a part of an answer of known length. Most answers
	// arrive in one piece, and then head and body leave in one write.
	flushPatience = 10 * time.Millisecond
)

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
		Rewrite: h.rewrite, Transport: &transport{cfg}, ModifyResponse: addLength, ErrorHandler: h.fail,
		FlushInterval: flushPatience, BufferPool: buffers{},
		ErrorLog: logs.ForLibrary(cfg.Log.With("port", cfg.Name), slog.LevelInfo, "proxying"),
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
		if reason := out.failure(); reason != "" && h.cfg.Failed != nil {
			h.cfg.Failed(reason)
		}
		h.cfg.Finished(out.status, took)
		h.cfg.log(r, out, took, broken != nil)
		out.caller.end(r, h.drain)
		if broken == nil {
			endNormally(w, r)
			return
		}
		// The answer is incomplete. usher still sends what it has of it, even if that is only the
		// status: many clients send a call again if the connection ends before any answer.
		if out.status != statusGone {
			_ = http.NewResponseController(w).Flush() // fails if the caller has gone
		}
		panic(broken) // net/http closes the connection
	}()
	if p := h.check(r); p != nil {
		h.answer(out, p)
		return
	}
	if asksForToken(r) {
		if p := h.cfg.answerToken(out, r, h.patience); p != nil {
			h.answer(out, p)
		}
		return
	}
	// usher never switches protocols. So it drops an Upgrade header before ReverseProxy acts on it.
	// (Java's client sends one for h2c.)
	r.Header.Del("Upgrade")
	if r.ContentLength != 0 {
		out.caller.ReadCloser, out.caller.writer, out.caller.patience = r.Body, w, h.patience
		r.Body = &out.caller
	}
	h.proxy.ServeHTTP(out, r)
}

// check returns why a request may not pass, or nil. It reads nothing of the body.
func (h *Handler) check(r *http.Request) *problem {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case guard.Refused(r.Method):
		return &problem{status: http.StatusMethodNotAllowed, code: "METHOD_REFUSED",
			message: r.Method + " is not allowed on this port"}
	case !h.cfg.Hosts.Allowed(r.Host):
		return &problem{status: http.StatusMisdirectedRequest, code: "HOST_REFUSED",
			message: "this Host is not allowed: call the port by its address, or add the name to USHER_ALLOWED_HOSTS"}
	case guard.FromBrowser(r.Header) || guard.Navigation(r.Header):
		return &problem{status: http.StatusForbidden, code: "BROWSER_REFUSED",
			message: "this call comes from a web browser, and client credentials are not for browsers"}
	case h.cfg.Key == nil && reads && h.cfg.Hosts.Rebindable(r.Host):
		return &problem{status: http.StatusForbidden, code: "BROWSER_REFUSED",
			message: "this GET may come from a web page whose name leads here: without a key (USHER_KEY), " +
				"send a POST, or call the port by its address"}
	case asksForToken(r): // its secret is in its body
		return nil
	case h.cfg.Key != nil && !guard.HasKey(r.Header, h.cfg.Key()):
		return &problem{status: http.StatusUnauthorized, code: "KEY_REQUIRED",
			message: "the key of this port is missing or wrong: send it as 'Authorization: Bearer KEY', " +
				"as the password of Basic authentication, or as 'X-Usher-Key: KEY'"}
	// The path must be exactly this one as it was sent: with an unusual escape RawPath is set.
	case r.URL.Path != path || r.URL.RawPath != "":
		return &problem{status: http.StatusNotFound, code: "NOT_FOUND",
			message: "only " + path + " and POST " + tokenPath + " are served here"}
	}
	return nil
}

// rewrite turns the incoming call into the outgoing one. ReverseProxy has already removed the
// hop-by-hop headers, also those that Connection names. The token is added later, so that no
// Connection header can remove it.
func (h *Handler) rewrite(pr *httputil.ProxyRequest) {
	*pr.Out.URL = *h.cfg.Target // pr.Out.URL is ReverseProxy's own copy
	// The query stays as it came: ReverseProxy has dropped the parts that it cannot parse.
	pr.Out.URL.RawQuery, pr.Out.URL.ForceQuery = pr.In.URL.RawQuery, pr.In.URL.ForceQuery
	if pr.Out.Body != nil {
		pr.Out.Body = pr.In.Body // ReverseProxy has wrapped it, and transport needs the *callerBody
	}
	pr.Out.Host = ""
	pr.Out.Trailer = nil
	for name := range pr.Out.Header {
		if private(name) {
			delete(pr.Out.Header, name)
		}
	}
}

// private reports whether the service must not get a header, because it is between the caller and
// usher only.
func private(name string) bool {
	if strings.Contains(name, "_") {
		// To CGI and WSGI servers X_Usher_Key and X-Usher-Key are the same.
		name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		switch name {
		case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
			"Te", "Trailer", "Transfer-Encoding", "Content-Length", "Upgrade":
			return true
		}
	}
	switch name {
	case "Authorization", "X-Usher-Key", "Forwarded", "Via", "X-Real-Ip", "X-Original-Forwarded-For",
		"Te",             // hop-by-hop, but ReverseProxy passes "trailers" on
		"Expect",         // usher answers it itself
		"Http2-Settings": // belongs to "Upgrade: h2c"
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
		// Reading the body failed, which also cancels the context. Either of the two errors may
		// arrive here first. The caller may still be connected, and gets the answer.
		err = &bodyError{errors.New("it ended too early")}
	default:
		// The caller hung up: nobody reads the answer.
		out.WriteHeader(statusGone)
		return
	}
	h.answer(out, problemOf(err))
}

// answer writes one of usher's own answers.
func (h *Handler) answer(out *outcome, p *problem) {
	out.problem = p
	setPatience(out.ResponseWriter, h.drain)
	p.write(out)
}

// buffers is ReverseProxy's pool of buffers for copying answers. They are as large as Linux's default receive buffer:
// an answer of 100 KB needs 9 system calls instead of 16.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([128 << 10]byte) }}

func (buffers) Get() []byte { return bufferPool.Get().(*[128 << 10]byte)[:] }

func (buffers) Put(b []byte) { bufferPool.Put((*[128 << 10]byte)(b)) }
