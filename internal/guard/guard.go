// Package guard has the checks that all ports of usher share: can the request be read in one
// way only, is its Host allowed, and does the caller know the key? It also has the TLS of a port:
// certificates that may be replaced while it serves.
package guard

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Hosts says which Host headers are allowed. A web page from evil.example can make that name
// point to 127.0.0.1 (DNS rebinding). The browser then treats usher as the same origin, but
// its requests still carry Host: evil.example.
type Hosts struct {
	any   bool
	anyIP bool
	names map[string]bool // lower case; with or without a port
}

// NewHosts returns the rule for a listener at listen (host:port, or unix:/path). It allows the
// plain names of loopback, the listener's own host, and the names in allowed; "*" allows any.
// With anyIP every IP address is allowed, too: rebinding needs a name, so if a key is required
// an address does no harm, and load balancers and probes use it.
func NewHosts(listen string, allowed []string, anyIP bool) *Hosts {
	h := &Hosts{anyIP: anyIP, names: map[string]bool{"localhost": true}}
	if strings.HasPrefix(listen, "unix:") {
		h.any = true
	}
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		if addr, err := netip.ParseAddr(host); err != nil || !addr.IsUnspecified() {
			h.names[strings.ToLower(host)] = true
		}
	}
	for _, name := range allowed {
		if name == "*" {
			h.any = true
		}
		name = strings.ToLower(name)
		h.names[name] = true // "[fd00::1]:81" stays as it is, "[fd00::1]" is any port of it
		h.names[strings.Trim(name, "[]")] = true
	}
	return h
}

// Allowed reports whether host, as it was in a request, is allowed.
func (h *Hosts) Allowed(host string) bool {
	if h.any {
		return true
	}
	name, bracketed, ok := splitHost(host)
	if !ok {
		return false
	}
	if !bracketed && h.names[name] { // the common case
		return true
	}
	addr, err := netip.ParseAddr(name)
	isIP := err == nil
	// An IPv6 address is in brackets, anything else is not.
	if bracketed != (isIP && addr.Is6()) {
		return false
	}
	switch {
	case isIP && h.anyIP:
		return true
	// Only in the plain form: ParseAddr accepts no short or octal forms of IPv4, and a mapped
	// address (::ffff:127.0.0.1) is neither Is4 nor "::1".
	case isIP && (addr.Is4() && addr.IsLoopback() || name == "::1"):
		return true
	}
	lower := strings.ToLower(name)
	return h.names[lower] || h.names[strings.ToLower(host)]
}

// splitHost splits a Host header into the name and the port.
func splitHost(host string) (name string, bracketed, ok bool) {
	name = host
	if rest, found := strings.CutPrefix(host, "["); found {
		inner, after, closed := strings.Cut(rest, "]")
		if !closed || after != "" && !validPort(after) {
			return "", false, false
		}
		return inner, true, inner != ""
	}
	if i := strings.IndexByte(host, ':'); i >= 0 {
		if !validPort(host[i:]) {
			return "", false, false
		}
		name = host[:i]
	}
	return name, false, name != ""
}

// validPort reports whether s is a colon and up to five digits.
func validPort(s string) bool {
	if len(s) > 6 || s[0] != ':' {
		return false
	}
	for _, c := range s[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// Equal compares secrets in a time that does not depend on where they differ, or on their
// lengths. An empty want matches nothing.
func Equal(got, want string) bool {
	if got == "" {
		return false
	}
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && want != ""
}

// KeyHeader is for callers that need Authorization for something else.
const KeyHeader = "X-Usher-Key"

// HasKey reports whether a caller sent one of keys, which are separated by commas: as
// Authorization: Bearer, as the password of Basic authentication, or in X-Usher-Key. It always
// compares all of them, so that the time it takes says nothing.
func HasKey(h http.Header, keys string) bool {
	bearer, _ := Bearer(h)
	_, password, _ := (&http.Request{Header: h}).BasicAuth()
	own := h.Get(KeyHeader)
	known := false
	for key := range strings.SplitSeq(keys, ",") {
		key = strings.TrimSpace(key)
		for _, got := range [...]string{bearer, password, own} {
			if Equal(got, key) {
				known = true
			}
		}
	}
	return known
}

// Bearer returns the token of an Authorization header of the Bearer scheme.
func Bearer(h http.Header) (token string, ok bool) {
	scheme, token, found := strings.Cut(h.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	return strings.Trim(token, " "), true
}
