// Package signature makes and checks the billing service's signature over a webhook's body, an HMAC in a
// header of its own, and makes the Standard Webhooks headers, which receivers can check.
package signature

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// An HMAC is a kind of signature: HMAC with one of the hashes.
type HMAC struct {
	Name string // of the hash: sha256, sha512 or sha1
	hash func() hash.Hash
	size int // of a signature, in bytes
}

var hmacs = []HMAC{
	{"sha256", sha256.New, sha256.Size}, // first, because Standard Webhooks uses it
	{"sha512", sha512.New, sha512.Size},
	{"sha1", sha1.New, sha1.Size}, // the billing service's; as an HMAC it is not broken
}

// ByName returns the HMAC with the hash of this name: sha256, sha512 or sha1.
func ByName(hash string) (HMAC, error) {
	for _, a := range hmacs {
		if a.Name == hash {
			return a, nil
		}
	}
	return HMAC{}, errors.New("unknown hash")
}

// Verify reports whether there is exactly one signature, in hex or base64, and it fits the body with one of the
// keys, which are separated by commas. If there were several signatures, a proxy or the receiver might check
// another one than usher. An empty key verifies nothing.
func (a HMAC) Verify(keys string, signatures []string, body []byte) bool {
	if len(signatures) != 1 {
		return false
	}
	got, err := a.parse(signatures[0])
	if err != nil {
		return false
	}
	fits := false
	for key := range strings.SplitSeq(keys, ",") {
		if key = strings.TrimSpace(key); key != "" {
			fits = hmac.Equal(got, a.sign([]byte(key), body)) || fits
		}
	}
	return fits
}

// parse reads an HMAC in hex or base64 (also the alphabet for URLs, with or without padding), with or without the
// hash's name and "=". Hex and base64 cannot be confused: for the same bytes hex is longer.
func (a HMAC) parse(s string) ([]byte, error) {
	s = strings.TrimSpace(s)
	if name, rest, found := strings.Cut(s, "="); found && strings.EqualFold(name, a.Name) {
		s = rest
	}
	switch s = strings.TrimRight(s, "="); len(s) {
	case hex.EncodedLen(a.size):
		return hex.DecodeString(s)
	case base64.RawStdEncoding.EncodedLen(a.size):
		return base64.RawStdEncoding.DecodeString(strings.NewReplacer("-", "+", "_", "/").Replace(s))
	}
	return nil, errors.New("wrong length") // not decoded: a stranger can send megabytes
}

// Sign returns a signature with the first of the keys as the billing service writes it: the HMAC in hex.
func (a HMAC) Sign(keys string, body []byte) string {
	first, _, _ := strings.Cut(keys, ",")
	return hex.EncodeToString(a.sign([]byte(strings.TrimSpace(first)), body))
}

func (a HMAC) sign(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(a.hash, key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// ParseKey reads a Standard Webhooks secret: the key in base64 after "whsec_". Its errors do not show the secret.
func ParseKey(s string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(s, "whsec_")
	if !ok {
		return nil, errors.New(`must be "whsec_" and the key in base64`)
	}
	key, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "="))
	if err != nil {
		return nil, errors.New(`what follows "whsec_" must be base64`)
	}
	if len(key) == 0 {
		return nil, errors.New(`the key after "whsec_" is empty`)
	}
	return key, nil
}

// ParseKeys reads several secrets, separated by commas. Its errors do not show them.
func ParseKeys(list string) (keys [][]byte, err error) {
	for s := range strings.SplitSeq(list, ",") {
		key, err := ParseKey(strings.TrimSpace(s))
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Stamp sets the headers of Standard Webhooks (standardwebhooks.com) for one try: the id, the time, and a signature
// for each key. It replaces those of the sender.
func Stamp(h http.Header, id string, now time.Time, body []byte, keys ...[]byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	var signatures []string
	for _, key := range keys {
		mac := hmacs[0].sign(key, []byte(id+"."+timestamp+"."), body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac))
	}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", timestamp)
	h.Del("Webhook-Signature")
	if signatures != nil {
		h.Set("Webhook-Signature", strings.Join(signatures, " "))
	}
}
