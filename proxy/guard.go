package proxy

import (
	"net/http"

	"usher/internal/guard"
)

// check says why a request may not pass, or nil. Nothing of the body is read
// before.
func (h *Handler) check(r *http.Request) *problem {
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		// What follows a CONNECT on the wire is not to be read as a request.
		return &problem{status: http.StatusMethodNotAllowed, code: "METHOD_REFUSED", close: true,
			message: r.Method + " is not for this port"}
	case !h.cfg.Hosts.Allowed(r.Host):
		return &problem{status: http.StatusMisdirectedRequest, code: "HOST_REFUSED",
			message: "this Host is not answered here: call the port by its address, or allow the name with USHER_ALLOWED_HOSTS"}
	case guard.FromBrowser(r.Header):
		return &problem{status: http.StatusForbidden, code: "BROWSER_REFUSED",
			message: "this call comes from a web page, and client credentials are not for browsers"}
	case h.cfg.Key != nil && !guard.HasKey(r.Header, h.cfg.Key()):
		return &problem{status: http.StatusUnauthorized, code: "KEY_REQUIRED",
			message: "the key of this port is missing or wrong: send it as 'Authorization: Bearer KEY', as the password of Basic authentication, or as 'X-Usher-Key: KEY'"}
	// As it was sent: RawPath is set where the escaped form was another one.
	case r.URL.Path != path || r.URL.RawPath != "":
		return &problem{status: http.StatusNotFound, code: "NOT_FOUND",
			message: "only " + path + " is served here"}
	}
	return nil
}
