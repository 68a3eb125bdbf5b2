// Package signature makes and checks signatures over a webhook's body: a plain HMAC in a header
// of its own, which senders use, and the Standard Webhooks headers, which senders and usher use.
package signature

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"strings"
)

// An HMAC is made with one hash.
type HMAC struct {
	name string
	hash func() hash.Hash
	size int // of the HMAC, in bytes
}

var hmacs = []HMAC{
	{"sha256", sha256.New, sha256.Size},
	{"sha512", sha512.New, sha512.Size},
	{"sha1", sha1.New, sha1.Size}, // for senders that support nothing better; as an HMAC it is not broken
}

// ByName returns the HMAC with a hash: sha256, sha512 or sha1.
func ByName(hash string) (HMAC, bool) {
	for _, a := range hmacs {
		if a.name == hash {
			return a, true
		}
	}
	return HMAC{}, false
}

// Verify accepts exactly one signature, in hex or base64. With several, a proxy or the receiver
// might use another one than usher. An empty secret verifies nothing.
func (a HMAC) Verify(secret string, signatures []string, body []byte) bool {
	if secret == "" || len(signatures) != 1 {
		return false
	}
	got, ok := a.parse(signatures[0])
	return ok && hmac.Equal(got, a.sign([]byte(secret), body))
}

// parse reads an HMAC in hex or base64, with or without the hash's name and "=". Hex and
// base64 cannot be confused: for the same bytes hex is longer.
func (a HMAC) parse(s string) ([]byte, bool) {
	s = strings.TrimSpace(s)
	if name, rest, found := strings.Cut(s, "="); found && strings.EqualFold(name, a.name) {
		s = rest
	}
	decode := DecodeBase64
	if len(s) == hex.EncodedLen(a.size) {
		decode = hex.DecodeString
	}
	mac, err := decode(s)
	return mac, err == nil && len(mac) == a.size
}

func (a HMAC) sign(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(a.hash, key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// DecodeBase64 reads either alphabet, padded or not.
func DecodeBase64(s string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/").Replace(s)
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
}
