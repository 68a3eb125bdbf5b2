package signature

import (
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Standard Webhooks (standardwebhooks.com): three headers, and a signature over
// "id.timestamp.body".
const (
	idHeader        = "Webhook-Id"
	timestampHeader = "Webhook-Timestamp"
	signatureHeader = "Webhook-Signature"

	tolerance = 5 * time.Minute
)

// ParseKey reads a Standard Webhooks secret: the key in base64 after
// "whsec_". Its errors do not show the secret.
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

// Stamp sets the headers for one try: the id, the time, and a signature unless key is nil. It
// replaces those of a sender.
func Stamp(h http.Header, key []byte, id string, now time.Time, body []byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	h.Set(idHeader, id)
	h.Set(timestampHeader, timestamp)
	h.Del(signatureHeader)
	if key != nil {
		h.Set(signatureHeader, "v1,"+base64.StdEncoding.EncodeToString(standardMAC(key, id, timestamp, body)))
	}
}

func standardMAC(key []byte, id, timestamp string, body []byte) []byte {
	sha256, _ := ByName("sha256")
	return sha256.sign(key, []byte(id), []byte("."), []byte(timestamp), []byte("."), body)
}

// VerifyStandard returns what is wrong with the sender's Standard Webhooks headers, or nothing.
// Each must occur once. The signature header may list several signatures, as senders do while
// they rotate keys; one that fits is enough.
func VerifyStandard(key []byte, h http.Header, body []byte, now time.Time) string {
	for _, name := range []string{idHeader, timestampHeader, signatureHeader} {
		if values := h.Values(name); len(values) != 1 || values[0] == "" {
			return strings.ToLower(name) + " must be given once"
		}
	}
	timestamp := h.Get(timestampHeader)
	sent, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return "webhook-timestamp must be a Unix time in seconds"
	}
	if off := now.Unix() - sent; off > int64(tolerance/time.Second) || off < -int64(tolerance/time.Second) {
		return "webhook-timestamp is more than five minutes off"
	}
	want := standardMAC(key, h.Get(idHeader), timestamp, body)
	fits := false
	for _, mac := range standardSignatures(h.Get(signatureHeader)) {
		fits = hmac.Equal(mac, want) || fits
	}
	if !fits {
		return "webhook-signature does not fit the body"
	}
	return ""
}

// standardSignatures returns the v1 signatures of a space-separated list. It ignores other
// versions and invalid ones, as the standard requires.
func standardSignatures(list string) [][]byte {
	var macs [][]byte
	for _, entry := range strings.Fields(list) {
		version, encoded, _ := strings.Cut(entry, ",")
		if version != "v1" {
			continue
		}
		if mac, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			macs = append(macs, mac)
		}
	}
	return macs
}
