package webhookgate

import (
	"net/http"
	"slices"
	"strings"
)

// neverForwarded are headers of the sender that the receiver does not get, in the spelling of normal: they are between
// the sender and usher only, or usher writes them itself.
var neverForwarded = []string{
	"connection", "content-length", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
	"forwarded", "x-real-ip", "webhook-id", "webhook-timestamp", "webhook-signature", "usher-source",
}

// forwardHeader returns the headers for the receiver: those of the sender, without what has proved the token,
// and X-Forwarded-*. The service's token and a signature of usher's own are added to each try.
func (c *Config) forwardHeader(r *http.Request, pathSecret string) http.Header {
	drop := slices.Clone(neverForwarded)
	for _, list := range r.Header.Values("Connection") {
		for name := range strings.SplitSeq(list, ",") {
			drop = append(drop, normal(strings.TrimSpace(name)))
		}
	}
	if c.Tokens != nil {
		drop = append(drop, "authorization", normal(tokenHeader))
	}
	out := make(http.Header, len(r.Header)+4)
	for name, values := range r.Header {
		n := normal(name)
		lookAlike := n != strings.ToLower(name)
		switch {
		case slices.Contains(drop, n), strings.HasPrefix(n, "x-forwarded-"): // the latter are only a claim
		case lookAlike && c.isRead(n):
		case showsSecret(pathSecret, values):
		default:
			out[name] = values
		}
	}
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	if peer := peerAddr(r); peer.IsValid() {
		out.Set("X-Forwarded-For", peer.String())
	}
	out.Set("X-Forwarded-Host", r.Host)
	out.Set("X-Forwarded-Proto", proto)
	return out
}

// isRead reports whether receivers may believe the header of this name, in the spelling of normal.
func (c *Config) isRead(name string) bool {
	return strings.HasPrefix(name, "webhook-") || name == "authorization" || name == normal(tokenHeader) ||
		name == normal(c.SignatureHeader)
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
func showsSecret(pathSecret string, values []string) bool {
	if pathSecret == "" {
		return false
	}
	sent, plain := "/"+pathSecret, "/"+unescaped(pathSecret)
	shows := func(value string) bool { return strings.Contains(value, sent) || strings.Contains(value, plain) }
	return slices.ContainsFunc(values, func(value string) bool { return shows(value) || shows(unescaped(value)) })
}
