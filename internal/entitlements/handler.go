package entitlements

import (
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"usher/internal/guard"
)

// New returns the handler of the port.
func New(cfg Config) http.Handler {
	return &Handler{cfg: cfg, quiet: rate.Sometimes{Interval: 10 * time.Second}}
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := parsePath(guard.SentPath(r.URL))
	if r.ContentLength != 0 {
		// net/http would wait for the whole body before it answers, unless the connection is closed afterwards. (A
		// web server may pass on a visitor's Content-Length, but not the body.) readContext keeps the connection.
		patience := time.Now().Add(bodyPatience)
		_ = http.NewResponseController(w).SetReadDeadline(patience) // fails only without a connection
		w.Header().Add("Connection", "close")
	}
	a, err := h.answer(w, r, to)
	if unanswered(err) {
		h.quiet.Do(func() { h.cfg.Log.Warn("entitlements cannot be answered", "error", err) })
	}
	respond(w, to, a, err)
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request, to target) (reply, error) {
	if err := h.guard(w, r, to); err != nil {
		return reply{}, err
	}
	if to.serve == nil {
		usage := tenantPath + "TENANT, " + tenantPath + "TENANT/FEATURE, " +
			checkPath + ", " + changesPath + " or " + flagsPath +
			". Percent-encode the codes; a slash inside a code is %2F."
		if to.ofrep {
			usage = flagsPath + " or " + flagsPath + "/KEY."
		}
		return reply{}, &problem{http.StatusNotFound, "NOT_FOUND", general, "Not found. Use " + usage}
	}
	allow, ok := "GET, HEAD", r.Method == http.MethodGet || r.Method == http.MethodHead
	if to.ofrep {
		allow, ok = "POST", r.Method == http.MethodPost
	}
	if !ok {
		w.Header().Set("Allow", allow)
		return reply{}, &problem{http.StatusMethodNotAllowed, "METHOD_REFUSED", general, "Use " + allow + " here."}
	}
	begin := time.Now()
	a, err := to.serve(h, w, r, to)
	if h.cfg.Answered != nil && !to.changes {
		h.cfg.Answered(time.Since(begin), !unanswered(err))
	}
	return a, err
}

// guard returns why a request may not pass, or nil. A web server asks /v1/check for each of its visitors, and may send
// the visitor's own headers. So headers of a browser do not count there, and Authorization is the visitor's if the web
// server sends its own key in X-Usher-Key.
func (h *Handler) guard(w http.ResponseWriter, r *http.Request, to target) error {
	switch {
	case guard.Refused(r.Method):
		return &problem{http.StatusMethodNotAllowed, "METHOD_REFUSED", general,
			r.Method + " is not allowed on this port."}
	case !h.cfg.Hosts.Allowed(r.Host):
		return &problem{http.StatusMisdirectedRequest, "HOST_REFUSED", general,
			"This Host is not allowed: call the port by its address, or add the name to USHER_ALLOWED_HOSTS."}
	case !to.check && guard.FromBrowser(r.Header):
		return &problem{http.StatusForbidden, "BROWSER_REFUSED", general,
			"This call comes from a web page. Browsers are refused here: ask from your server."}
	case h.cfg.Key != nil && !knowsKey(r.Header, to, h.cfg.Key()):
		if !to.check { // nginx would pass it on, and the visitor's browser would ask for usher's key
			w.Header().Set("WWW-Authenticate", `Bearer realm="usher"`)
		}
		return &problem{http.StatusUnauthorized, "KEY_REQUIRED", general,
			"The key of this port is missing or wrong: send it as 'Authorization: Bearer KEY', " +
				"as the password of Basic authentication, or as 'X-Usher-Key: KEY'."}
	}
	return nil
}

// knowsKey reports whether the caller sent one of the keys, which are separated by commas.
func knowsKey(h http.Header, to target, keys string) bool {
	if to.ofrep && guard.HasKey(http.Header{guard.KeyHeader: h["X-Api-Key"]}, keys) {
		return true
	}
	if own := h[guard.KeyHeader]; to.check && own != nil {
		h = http.Header{guard.KeyHeader: own}
	}
	return guard.HasKey(h, keys)
}

// parsePath splits a path as it was sent, and then unescapes its parts, since a code may contain a
// slash. It cleans nothing: ".." is a code like any other.
func parsePath(path string) target {
	to := target{ofrep: strings.HasPrefix(path, "/ofrep/")}
	switch {
	case path == checkPath:
		to.check, to.serve = true, (*Handler).check
	case path == changesPath:
		to.changes, to.serve = true, (*Handler).changes
	case path == flagsPath:
		to.serve = (*Handler).flags
	case strings.HasPrefix(path, flagsPath+"/"):
		// The whole rest is the key: some providers escape a slash in it, others do not.
		if key, ok := unescape(path[len(flagsPath)+1:]); ok {
			to.serve, to.feature = (*Handler).flag, &key
		}
	case strings.HasPrefix(path, tenantPath):
		codes := strings.Split(path[len(tenantPath):], "/")
		for i := range codes {
			var ok bool
			if codes[i], ok = unescape(codes[i]); !ok {
				return to
			}
		}
		switch len(codes) {
		case 2:
			to.feature = &codes[1]
			fallthrough
		case 1:
			to.serve, to.tenant = (*Handler).entitlements, codes[0]
		}
	}
	return to
}
