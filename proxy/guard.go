package proxy

import (
	"net/http"

	"usher/internal/guard"
)

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
