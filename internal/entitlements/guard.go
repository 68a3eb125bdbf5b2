package entitlements

import (
	"net/http"

	"usher/internal/guard"
)

// guard says why a request may not pass, or nil. Nothing of the body is read before.
//
// A check is asked for by a web server on behalf of each of its visitors, with the
// visitor's own headers on it. So what these say of a browser counts for nothing
// there, and Authorization is the visitor's as soon as the web server has brought a
// key of its own.
func (h *Handler) guard(r *http.Request, to target) error {
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		// What follows a CONNECT on the wire is not to be read as a request.
		return &problem{status: http.StatusMethodNotAllowed, code: codeMethodRefused, close: true,
			message: r.Method + " is not allowed on this port."}
	case !h.cfg.Hosts.Allowed(r.Host):
		return &problem{status: http.StatusMisdirectedRequest, code: "HOST_REFUSED",
			message: "This Host is not allowed: call the port by its address, or add the name to USHER_ALLOWED_HOSTS."}
	case to.page != checkPage && guard.FromBrowser(r.Header):
		return &problem{status: http.StatusForbidden, code: "BROWSER_REFUSED",
			message: "This call comes from a web page. Browsers are refused here: ask from your server."}
	case h.cfg.Key != nil && !knowsKey(r.Header, to, h.cfg.Key()):
		return &problem{status: http.StatusUnauthorized, code: codeKeyRequired,
			message: "The key of this port is missing or wrong: send it as 'Authorization: Bearer KEY', as the password of Basic authentication, or as 'X-Usher-Key: KEY'."}
	}
	return nil
}

// knowsKey says whether the caller presents a key, one of those separated by commas.
func knowsKey(h http.Header, to target, keys string) bool {
	known := false
	if to.ofrep {
		known = guard.HasKey(http.Header{guard.KeyHeader: h["X-Api-Key"]}, keys)
	}
	if own := h[guard.KeyHeader]; to.page == checkPage && own != nil {
		h = http.Header{guard.KeyHeader: own}
	}
	return guard.HasKey(h, keys) || known
}
