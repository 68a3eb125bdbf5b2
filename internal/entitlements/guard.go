package entitlements

import (
	"net/http"
	"slices"

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
			message: "This Host is not answered here: call the port by its address, or allow the name with USHER_ALLOWED_HOSTS."}
	case to.page != checkPage && fromBrowser(r.Header):
		return &problem{status: http.StatusForbidden, code: "BROWSER_REFUSED",
			message: "This call comes from a web page. Browsers are refused here: ask from your server."}
	case h.cfg.Keys != nil && !knowsKey(keysIn(r, to), h.cfg.Keys()):
		return &problem{status: http.StatusUnauthorized, code: codeKeyRequired,
			message: "The key of this port is missing or wrong: send it as 'Authorization: Bearer KEY' or as 'X-Usher-Key: KEY'."}
	}
	return nil
}

// fromBrowser: a page's script can't keep its browser from sending these, and nothing
// but a browser has reason to send them. none is a person's own doing.
func fromBrowser(h http.Header) bool {
	if _, ok := h["Origin"]; ok {
		return true
	}
	for _, site := range h["Sec-Fetch-Site"] {
		if site != "none" {
			return true
		}
	}
	return false
}

// keysIn returns what the caller presents as a key.
func keysIn(r *http.Request, to target) []string {
	given := r.Header.Values("X-Usher-Key")
	if to.page == checkPage && len(given) > 0 {
		return given
	}
	keys := slices.Clone(given)
	if bearer, ok := guard.Bearer(r.Header); ok {
		keys = append(keys, bearer)
	}
	if _, password, ok := r.BasicAuth(); ok {
		keys = append(keys, password)
	}
	if to.ofrep {
		keys = append(keys, r.Header.Values("X-Api-Key")...)
	}
	return keys
}

// knowsKey compares everything with everything, all the way: how long it takes tells
// nothing.
func knowsKey(presented, good []string) bool {
	knows := false
	for _, p := range presented {
		for _, g := range good {
			knows = guard.Equal(p, g) || knows
		}
	}
	return knows
}
