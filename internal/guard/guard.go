// Package guard has the checks that all ports of usher share: can the request be read in one
// way only, is its Host allowed, and does the caller know the key? It also has the TLS of a port:
// certificates that may be replaced while it serves.
package guard

import (
	"crypto/subtle"
	"iter"
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
	any   bool
	anyIP bool
	names map[string]bool // lower case; with or without a port
}

// NewHosts returns the rule for a listener at listen (host:port, or unix:/path). It allows the
// plain names of loopback, the listener's own host, and the names in allowed; "*" allows any.
// With anyIP every IP address is allowed, too: rebinding needs a name, so if a key is required
// an address does no harm, and load balancers and probes use it.
func NewHosts(listen string, allowed []string, anyIP bool) *Hosts {
	h := &Hosts{any: strings.HasPrefix(listen, "unix:") || slices.Contains(allowed, "*"), anyIP: anyIP, names: map[string]bool{"localhost": true}}
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
	// Loopback only in the plain form: ParseAddr accepts no short or octal forms of IPv4, and a mapped
	// address (::ffff:127.0.0.1) is neither Is4 nor "::1".
	if isIP && (h.anyIP || addr.Is4() && addr.IsLoopback() || name == "::1") {
		return true
	}
	return h.names[strings.ToLower(name)] || h.names[strings.ToLower(host)]
}

// Equal compares secrets in a time that does not depend on where they differ. It does not hide
// the length of want: that is no secret, and to hash all that a stranger sends costs more than it
// costs the stranger. An empty want matches nothing.
func Equal(got, want string) bool {
	return want != "" && len(got) == len(want) && subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
}

// KeyHeader is for callers that need Authorization for something else.
const KeyHeader = "X-Usher-Key"

// HasKey reports whether a caller sent one of keys, which are separated by commas: as
// Authorization: Bearer, as the password of Basic authentication, or in X-Usher-Key.
func HasKey(h http.Header, keys string) bool {
	_, password, _ := (&http.Request{Header: h}).BasicAuth()
	return OneOf(slices.Values([]string{Bearer(h), password, h.Get(KeyHeader)}), keys)
}

// OneOf reports whether one of the secrets that a caller presented is one of good, which are
// separated by commas. It compares each with each, and never stops early: the time it takes says
// nothing about a good one, but its length.
func OneOf(presented iter.Seq[string], good string) bool {
	match := false
	for got := range presented {
		for want := range strings.SplitSeq(good, ",") {
			match = Equal(got, strings.TrimSpace(want)) || match
		}
	}
	return match
}

// Bearer returns the token of an Authorization header of the Bearer scheme, or nothing.
func Bearer(h http.Header) string {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.Trim(token, " ")
}

// FromBrowser reports whether a request comes from a web page. A page's script cannot stop its
// browser from sending these headers, and only a browser has a reason to send them. The site
// "none" means that a person typed an address: this one, or one that redirects here. For a port
// on which a GET can do something, see Navigation.
func FromBrowser(h http.Header) bool {
	_, origin := h["Origin"]
	return origin || slices.ContainsFunc(h["Sec-Fetch-Site"], func(site string) bool { return site != "none" })
}

// Navigation reports whether a browser opens the address as a page. A redirect from a foreign
// address that a person typed looks as if the person had typed this one.
func Navigation(h http.Header) bool { return slices.Contains(h["Sec-Fetch-Mode"], "navigate") }

// SentPath returns the path exactly as it was sent. URL.EscapedPath alone does not: if a path has a
// letter that should be escaped and is not, it unescapes the whole path and escapes it again. A %2F
// inside a tenant's code would then split the code.
func SentPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath()
}

// Seconds writes a duration for a header such as Retry-After: in whole seconds, rounded up.
func Seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }
