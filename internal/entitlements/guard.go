package entitlements

import (
	"net/http"

	"usher/internal/guard"
)

// guard returns why a request may not pass, or nil. It reads nothing of the body.
//
// A web server asks /v1/check for each of its visitors, and may send the visitor's own headers.
// So headers of a browser do not count there, and Authorization is the visitor's if the web
// server sends its own key in X-Usher-Key.
func (h *Handler) guard(r *http.Request, to target) error {
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		// Bytes that follow a CONNECT must not be read as a request.
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

// knowsKey reports whether the caller sent one of the keys, which are separated by commas.
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
