package guard

import "net/http"

// FromBrowser says whether a request comes from a web page. A page's script can't keep
// its browser from sending these headers, and nothing but a browser has reason to send
// them. A site of "none" is a person's own doing.
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
