package webhookgate

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const tokenHeader = "X-Webhook-Token"

// checkToken looks for a shared secret in the four places where senders can put one. If the
// path has a segment for it, that one must be right: another secret does not make up for a
// wrong one.
func (g *Gate) checkToken(v *visit) *answer {
	if g.cfg.Tokens == nil {
		return nil
	}
	presented := pathSecrets(v.pathSecret)
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

// pathSecrets returns the two readings of a path segment: as it was sent, and unescaped. Some
// senders escape more than they need to, others escape nothing.
func pathSecrets(segment string) []string {
	if plain, err := url.PathUnescape(segment); err == nil && plain != segment {
		return []string{segment, plain}
	}
	return []string{segment}
}

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
			pair, err := decodeBase64(rest)
			if _, password, ok := strings.Cut(string(pair), ":"); ok && err == nil {
				secrets = append(secrets, password)
			}
		}
	}
	return secrets
}

// oneOf compares the digests of every presented secret with those of every good one, and never
// stops early: the time it takes says nothing about a good one. An empty good one matches
// nothing.
func oneOf(presented, good []string) bool {
	digests := make([][sha256.Size]byte, len(presented))
	for i, p := range presented {
		digests[i] = sha256.Sum256([]byte(p))
	}
	match := 0
	for _, secret := range good {
		if secret == "" {
			continue
		}
		want := sha256.Sum256([]byte(secret))
		for i := range digests {
			match |= subtle.ConstantTimeCompare(digests[i][:], want[:])
		}
	}
	return match == 1
}

// checkSignature verifies the body's HMAC in the configured scheme.
func (g *Gate) checkSignature(h http.Header, body []byte) *answer {
	if g.cfg.HMACSecret == nil {
		return nil
	}
	secret := g.cfg.HMACSecret()
	if g.cfg.HMACStandard {
		key, err := ParseSecretKey(secret)
		if err != nil {
			g.cfg.Log.Error("webhook signatures can't be checked", "error", err)
			return reject(http.StatusUnauthorized, "signatures cannot be checked right now")
		}
		if why := verifyStandard(key, h, body, time.Now()); why != "" {
			return reject(http.StatusUnauthorized, why)
		}
		return nil
	}
	if !algorithms[g.cfg.HMACAlgorithm].verify(secret, h.Values(g.cfg.HMACHeader), body) {
		return reject(http.StatusUnauthorized, "the signature in "+g.cfg.HMACHeader+" is missing or does not fit the body")
	}
	return nil
}

// An algorithm is a hash that the body's HMAC can be made with.
type algorithm struct {
	name string
	hash func() hash.Hash
	size int // of the HMAC, in bytes
}

var algorithms = map[string]algorithm{
	"sha1":   {"sha1", sha1.New, sha1.Size}, // for senders that support nothing better; as an HMAC it is not broken
	"sha256": {"sha256", sha256.New, sha256.Size},
	"sha512": {"sha512", sha512.New, sha512.Size},
}

// verify accepts exactly one signature. With several, a proxy or the receiver might use
// another one than usher.
func (a algorithm) verify(secret string, signatures []string, body []byte) bool {
	if secret == "" || len(signatures) != 1 {
		return false
	}
	got, ok := a.parse(signatures[0])
	return ok && hmac.Equal(got, a.sign([]byte(secret), body))
}

// parse reads an HMAC in hex or base64, with or without the algorithm's name and "=". Hex and
// base64 cannot be confused: for the same bytes hex is longer.
func (a algorithm) parse(s string) ([]byte, bool) {
	s = strings.TrimSpace(s)
	if name, rest, found := strings.Cut(s, "="); found && strings.EqualFold(name, a.name) {
		s = rest
	}
	decode := decodeBase64
	if len(s) == hex.EncodedLen(a.size) {
		decode = hex.DecodeString
	}
	mac, err := decode(s)
	return mac, err == nil && len(mac) == a.size
}

func (a algorithm) sign(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(a.hash, key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// decodeBase64 reads either alphabet, padded or not.
func decodeBase64(s string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/").Replace(s)
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
}

// sign makes an HMAC-SHA256.
func sign(key []byte, parts ...[]byte) []byte { return algorithms["sha256"].sign(key, parts...) }
