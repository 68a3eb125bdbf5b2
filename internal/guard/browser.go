package guard

import "net/http"

// FromBrowser reports whether a request comes from a web page. A page's script cannot stop its
// browser from sending these headers, and only a browser has a reason to send them. The site
// "none" means that a person typed the address.
func FromBrowser(h http.Header) bool {
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
