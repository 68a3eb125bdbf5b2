package webhookgate

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"usher/internal/guard"
	"usher/webhookgate/signature"
)

const tokenHeader = "X-Webhook-Token"

// checkToken looks for a shared secret in the four places where senders can put one. If the
// path has a segment for it, that one must be right: another secret does not make up for a
// wrong one.
func (g *Gate) checkToken(v *visit) *answer {
	if g.cfg.Tokens == nil {
		return nil
	}
	presented := readings(v.pathSecret)
	if v.pathSecret == "" {
		presented = headerSecrets(v.r.Header)
	}
	if !oneOf(presented, g.cfg.Tokens()) {
		return noToken()
	}
	return nil
}

func noToken() *answer {
	return reject(http.StatusUnauthorized, "the shared secret is missing or wrong").with("WWW-Authenticate", "Bearer")
}

// readings returns the two readings of a part of an address: as it was sent, and unescaped. Some
// senders escape more than they need to, others escape nothing. What is no valid escape stays as
// it is: a query need not be valid.
func readings(s string) []string {
	return []string{s, escape.ReplaceAllStringFunc(s, func(e string) string {
		plain, _ := url.PathUnescape(e)
		return plain
	})}
}

var escape = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// headerSecrets returns all secrets in the headers.
func headerSecrets(h http.Header) []string {
	secrets := h.Values(tokenHeader)
	secrets = secrets[:len(secrets):len(secrets)] // appending must not reach into h
	for _, value := range h.Values("Authorization") {
		scheme, rest, _ := strings.Cut(value, " ")
		rest = strings.Trim(rest, " ")
		switch {
		case strings.EqualFold(scheme, "Bearer"):
			secrets = append(secrets, rest)
		case strings.EqualFold(scheme, "Basic"):
			pair, err := signature.DecodeBase64(rest)
			if _, password, ok := strings.Cut(string(pair), ":"); ok && err == nil {
				secrets = append(secrets, password)
			}
		}
	}
	return secrets
}

// oneOf compares every presented secret with every good one, and never stops early: the time it
// takes says nothing about a good one. An empty good one matches nothing.
func oneOf(presented, good []string) bool {
	match := false
	for _, want := range good {
		for _, got := range presented {
			match = guard.Equal(got, want) || match
		}
	}
	return match
}

// checkSignature verifies the body's HMAC in the configured scheme.
func (g *Gate) checkSignature(h http.Header, body []byte) *answer {
	if g.cfg.HMACSecret == nil {
		return nil
	}
	secret := g.cfg.HMACSecret()
	if g.cfg.HMACStandard {
		key, err := signature.ParseKey(secret)
		if err != nil {
			g.cfg.Log.Error("webhook signatures can't be checked", "error", err)
			return reject(http.StatusUnauthorized, "signatures cannot be checked right now")
		}
		if why := signature.VerifyStandard(key, h, body, time.Now()); why != "" {
			return reject(http.StatusUnauthorized, why)
		}
		return nil
	}
	if !g.hmac.Verify(secret, h.Values(g.cfg.HMACHeader), body) {
		return reject(http.StatusUnauthorized, "the signature in "+g.cfg.HMACHeader+" is missing or does not fit the body")
	}
	return nil
}
