// Package guard has what all ports of usher share: the limits of a server, TLS, and checks of the Host, the key and
// whether a browser sent a request.
package guard

import (
	"crypto/subtle"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Hosts says which Host headers are allowed. A web page from evil.example can make that name
// point to 127.0.0.1 (DNS rebinding). The browser then treats usher as the same origin, but
// its requests still carry Host: evil.example.
type Hosts struct {
	unix  bool // no browser can reach the listener
	any   bool
	anyIP bool
	names map[string]bool // lower case; with or without a port
}

// NewHosts returns the rule for a listener at listen (host:port, or unix:/path). It allows the plain names of loopback,
// the listener's own host, and the names in allowed; "*" allows any. With anyIP every IP address is allowed, too:
// rebinding needs a name, so if a key is required an address does no harm.
func NewHosts(listen string, allowed []string, anyIP bool) *Hosts {
	h := &Hosts{unix: strings.HasPrefix(listen, "unix:"), anyIP: anyIP, names: map[string]bool{"localhost": true}}
	h.any = h.unix || slices.Contains(allowed, "*")
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		if addr, err := netip.ParseAddr(host); err != nil || !addr.IsUnspecified() {
			h.names[strings.ToLower(host)] = true
		}
	}
	for _, name := range allowed {
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
	name, bracketed := (&url.URL{Host: host}).Hostname(), strings.HasPrefix(host, "[")
	if !bracketed && h.names[name] { // the common case
		return true
	}
	addr, err := netip.ParseAddr(name)
	isIP := err == nil
	// An IPv6 address is in brackets, anything else is not.
	if bracketed != (isIP && addr.Is6()) {
		return false
	}
	// Only the plain forms of a loopback address are allowed: ParseAddr accepts no short or octal
	// form of IPv4, and a mapped address (::ffff:127.0.0.1) is neither Is4 nor "::1".
	if isIP && (h.anyIP || addr.Is4() && addr.IsLoopback() || name == "::1") {
		return true
	}
	return h.names[strings.ToLower(name)] || h.names[strings.ToLower(host)]
}

// Rebindable reports whether a web page may have been loaded from this host, which is allowed: its owner can
// make any name point here. To such a page usher is its own origin, and then browsers send neither Origin
// nor Sec-Fetch-* with a GET.
func (h *Hosts) Rebindable(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	_, err := netip.ParseAddr(name)
	return !h.unix && err != nil && !strings.EqualFold(name, "localhost")
}

// Equal compares secrets in a time that does not depend on where they differ. It does not hide the length of want: for
// that usher would have to hash everything that a stranger sends. An empty want matches nothing.
func Equal(got, want string) bool {
	return want != "" && len(got) == len(want) && subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
}

// KeyHeader carries the key of a caller that needs Authorization for something else.
const KeyHeader = "X-Usher-Key"

// HasKey reports whether a caller sent one of keys, which are separated by commas: as
// Authorization: Bearer, as the password of Basic authentication, or in X-Usher-Key.
func HasKey(h http.Header, keys string) bool {
	_, password, _ := (&http.Request{Header: h}).BasicAuth()
	return OneOf([]string{Bearer(h), password, h.Get(KeyHeader)}, keys)
}

// OneOf reports whether a caller presented one of the good secrets, which are separated by commas. It always compares
// each with each, so that the time it takes shows nothing.
func OneOf(presented []string, good string) bool {
	match := false
	for _, got := range presented {
		for want := range strings.SplitSeq(good, ",") {
			match = Equal(got, strings.TrimSpace(want)) || match
		}
	}
	return match
}

// Bearer returns the token of an Authorization header of the Bearer scheme, or an empty string.
func Bearer(h http.Header) string {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.Trim(token, " ")
}

// FromBrowser reports whether a request comes from a web page. A page's script cannot stop its browser from sending
// these headers. With Sec-Fetch-Site "none" the request comes from an address that a person typed: this one, or one
// that redirects here. A port on which a GET can change something must check Navigation, too.
func FromBrowser(h http.Header) bool {
	_, origin := h["Origin"]
	return origin || slices.ContainsFunc(h["Sec-Fetch-Site"], func(site string) bool { return site != "none" })
}

// Navigation reports whether a browser opens the address as a page.
func Navigation(h http.Header) bool { return slices.Contains(h["Sec-Fetch-Mode"], "navigate") }

// SentPath returns the path exactly as the caller sent it. URL.EscapedPath does not always: it may escape a path again,
// and a %2F inside a tenant's code would become a slash.
func SentPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath()
}

// Seconds writes a duration for a header such as Retry-After: in whole seconds, rounded up.
func Seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }
