package webhookgate

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

// neverForwarded are the sender's headers that end at the gate, in the spelling
// of normal. The first group is between the sender and us alone; the second we
// write ourselves.
var neverForwarded = map[string]bool{
	"connection":          true,
	"content-length":      true,
	"expect":              true,
	"keep-alive":          true,
	"proxy-authenticate":  true,
	"proxy-authorization": true,
	"proxy-connection":    true,
	"te":                  true,
	"trailer":             true,
	"transfer-encoding":   true,
	"upgrade":             true,

	"forwarded":         true,
	"x-real-ip":         true,
	"webhook-id":        true,
	"webhook-timestamp": true,
	"webhook-signature": true,
}

// forwardHeader is what the receiver gets of the sender's headers, and where
// they came from. The secrets that the gate has checked stay here.
func (g *Gate) forwardHeader(v *visit) http.Header {
	drop := g.consumed(v.receiver, v.r.Header)
	out := make(http.Header, len(v.r.Header)+8)
	for name, values := range v.r.Header {
		n := normal(name)
		lookAlike := n != strings.ToLower(name)
		switch {
		case neverForwarded[n], drop[n], strings.HasPrefix(n, "x-forwarded-"):
		case lookAlike && (strings.HasPrefix(n, "webhook-") || n == normal(tokenHeader)):
		case v.leaks(values):
		default:
			out[name] = values
		}
	}
	if _, sent := out["User-Agent"]; !sent {
		out["User-Agent"] = []string{""} // or net/http would name itself
	}
	g.addForwarded(out, v.r)
	return out
}

// consumed are the names, normal, that this request or the settings add to
// neverForwarded.
func (g *Gate) consumed(rc *receiver, h http.Header) map[string]bool {
	drop := make(map[string]bool)
	for _, list := range h.Values("Connection") {
		for name := range strings.SplitSeq(list, ",") {
			drop[normal(strings.TrimSpace(name))] = true
		}
	}
	if g.cfg.Tokens != nil {
		drop["authorization"] = true
		drop[normal(tokenHeader)] = true
	}
	if g.cfg.HMACSecret != nil && !g.cfg.HMACStandard {
		drop[normal(g.cfg.HMACHeader)] = true
	}
	if rc != nil && rc.basicAuth != "" {
		drop["authorization"] = true
	}
	return drop
}

// normal spells a header as the most forgiving receivers see it: to a CGI-like
// one, X_Webhook_Token and X-Webhook-Token are both HTTP_X_WEBHOOK_TOKEN.
func normal(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'A' <= c && c <= 'Z':
			return c + 'a' - 'A'
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			return c
		default:
			return '-'
		}
	}, name)
}

// leaks reports whether a header repeats the secret in the path, as proxies do
// that add the original address (X-Original-Uri, X-Envoy-Original-Path).
func (v *visit) leaks(values []string) bool {
	if v.pathSecret == "" {
		return false
	}
	for _, secret := range pathSecrets(v.pathSecret) {
		if slices.ContainsFunc(values, func(value string) bool { return strings.Contains(value, "/"+secret) }) {
			return true
		}
	}
	return false
}

// addForwarded says whom the webhook came from. What a trusted proxy says about
// that is kept and continued; from anyone else it is a mere claim.
func (g *Gate) addForwarded(out http.Header, r *http.Request) {
	peer, known := peerAddr(r)
	host, proto := r.Host, "http"
	if r.TLS != nil {
		proto = "https"
	}
	var hops []string
	if known && contains(g.cfg.TrustedProxies, peer) {
		hops = append(hops, r.Header.Values("X-Forwarded-For")...)
		host = cmp.Or(r.Header.Get("X-Forwarded-Host"), host)
		proto = cmp.Or(r.Header.Get("X-Forwarded-Proto"), proto)
	}
	if known {
		hops = append(hops, peer.String())
	}
	if len(hops) > 0 {
		out.Set("X-Forwarded-For", strings.Join(hops, ", "))
	}
	out.Set("X-Forwarded-Host", host)
	out.Set("X-Forwarded-Proto", proto)
}
