package webhookgate

import (
	"net/http"
	"slices"
	"strings"

	"usher/internal/receiver"
)

// neverForwarded are headers of the sender that the receiver does not get, in the spelling of
// normal. Those of the first group are between the sender and usher only. Those of the second group
// usher writes itself.
var neverForwarded = []string{
	"connection", "content-length", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",

	"forwarded", "x-real-ip", "webhook-id", "webhook-timestamp", "webhook-signature",
	"usher-source",
}

// forwardHeader returns the headers for the receiver: those of the sender, without the secrets that
// the gate has checked, and X-Forwarded-*.
func (g *Gate) forwardHeader(in *arrival, to *receiver.Receiver) http.Header {
	drop := g.consumed(to, in.r.Header)
	out := make(http.Header, len(in.r.Header)+8)
	for name, values := range in.r.Header {
		n := normal(name)
		lookAlike := n != strings.ToLower(name)
		switch {
		case slices.Contains(neverForwarded, n), drop[n], strings.HasPrefix(n, "x-forwarded-"):
		case lookAlike && (strings.HasPrefix(n, "webhook-") || n == normal(tokenHeader)):
		case in.showsSecret(values):
		default:
			out[name] = values
		}
	}
	g.addForwarded(out, in.r)
	return out
}

// consumed returns the names that this request and the settings add to neverForwarded, in the
// spelling of normal.
func (g *Gate) consumed(to *receiver.Receiver, h http.Header) map[string]bool {
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
	if g.cfg.SigningKeys != nil {
		drop[normal(g.cfg.SignatureHeader)] = true
	}
	if to != nil && to.URL.User != nil {
		drop["authorization"] = true
	}
	return drop
}

// normal spells the name of a header as the most tolerant receivers read it: to a CGI program
// X_Webhook_Token and X-Webhook-Token are the same HTTP_X_WEBHOOK_TOKEN.
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

// showsSecret reports whether one of a header's values contains the secret in the path. Some proxies add
// the original address (X-Original-Uri, X-Envoy-Original-Path), and may escape it differently.
func (in *arrival) showsSecret(values []string) bool {
	if in.pathSecret == "" {
		return false
	}
	sent, plain := "/"+in.pathSecret, "/"+unescaped(in.pathSecret)
	shows := func(value string) bool { return strings.Contains(value, sent) || strings.Contains(value, plain) }
	return slices.ContainsFunc(values, func(value string) bool { return shows(value) || shows(unescaped(value)) })
}

// addForwarded adds X-Forwarded-*. What the sender has written there is only a claim, and does not pass.
func (g *Gate) addForwarded(out http.Header, r *http.Request) {
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	if peer := peerAddr(r); peer.IsValid() {
		out.Set("X-Forwarded-For", peer.String())
	}
	out.Set("X-Forwarded-Host", r.Host)
	out.Set("X-Forwarded-Proto", proto)
}
