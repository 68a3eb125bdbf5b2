package signature

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Every spelling of a signature is accepted, and never one that was made with another hash.
func TestHMAC(t *testing.T) {
	body := []byte("body")
	for _, a := range hmacs {
		mac := a.sign([]byte("key"), body)
		hexed, based := hex.EncodeToString(mac), base64.StdEncoding.EncodeToString(mac)
		for signature, ok := range map[string]bool{
			hexed: true, strings.ToUpper(hexed): true, based: true, strings.TrimRight(based, "="): true, base64.URLEncoding.EncodeToString(mac): true,
			a.Name + "=" + hexed: true, strings.ToUpper(a.Name) + "=" + based: true,
			"md5=" + hexed: false, hexed[:len(hexed)-2]: false, hexed + "00": false, "": false,
		} {
			for _, asked := range hmacs {
				if got, want := asked.Verify("key", []string{signature}, body), ok && asked.Name == a.Name; got != want {
					t.Errorf("%q, with %s: %v", signature, asked.Name, got)
				}
			}
		}
	}
	// RFC 2202, test case 2: not only in agreement with ourselves.
	sha1, _ := ByName("sha1")
	if got := hex.EncodeToString(sha1.sign([]byte("Jefe"), []byte("what do ya want for nothing?"))); got != "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79" {
		t.Error(got)
	}
	if _, err := ByName("md5"); err == nil {
		t.Error("md5 is known")
	}
}

func TestStandardWebhooks(t *testing.T) {
	// The example of the specification's reference libraries.
	key, err := ParseKey("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	const id, at, body, signature = "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	sent := time.Unix(1614265330, 0)
	stamped := make(http.Header)
	if Stamp(stamped, id, sent, []byte(body), key); stamped.Get("webhook-id") != id || stamped.Get("webhook-timestamp") != at || stamped.Get("webhook-signature") != signature {
		t.Errorf("%v, want the signature %s", stamped, signature)
	}
	if Stamp(stamped, id, sent, []byte(body), []byte("old"), key); !strings.HasSuffix(stamped.Get("webhook-signature"), " "+signature) || VerifyStandard([]byte("old"), stamped, []byte(body), sent) != "" {
		t.Errorf("with two keys: %v", stamped)
	}
	if Stamp(stamped, id, sent, []byte(body)); stamped.Get("webhook-id") != id || stamped.Get("webhook-signature") != "" {
		t.Errorf("unsigned: %v", stamped)
	}
	tests := []struct {
		name   string
		change func(http.Header)
		later  time.Duration
		want   string // a part of what is wrong
	}{
		{"as it should be", func(http.Header) {}, 0, ""},
		{"five minutes late", func(http.Header) {}, 5 * time.Minute, ""},
		{"five minutes early", func(http.Header) {}, -5 * time.Minute, ""},
		{"too late", func(http.Header) {}, 5*time.Minute + time.Second, "five minutes"},
		{"too early", func(http.Header) {}, -5*time.Minute - time.Second, "five minutes"},
		{"among others", func(h http.Header) {
			h.Set("webhook-signature", "v1a,abc v1,AAAA "+signature+" v2,"+signature[3:])
		}, 0, ""},
		{"another version", func(h http.Header) { h.Set("webhook-signature", "v2"+signature[2:]) }, 0, "does not fit"},
		{"no version", func(h http.Header) { h.Set("webhook-signature", signature[3:]) }, 0, "does not fit"},
		{"another id", func(h http.Header) { h.Set("webhook-id", "msg_2") }, 0, "does not fit"},
		{"another time", func(h http.Header) { h.Set("webhook-timestamp", "1614265331") }, 0, "does not fit"},
		{"no id", func(h http.Header) { h.Del("webhook-id") }, 0, "webhook-id must be given once"},
		{"two times", func(h http.Header) { h.Add("webhook-timestamp", at) }, 0, "webhook-timestamp must be given once"},
		{"no signature", func(h http.Header) { h.Del("webhook-signature") }, 0, "webhook-signature must be given once"},
		{"no time", func(h http.Header) { h.Set("webhook-timestamp", "today") }, 0, "Unix time"},
		{"a time beyond all bounds", func(h http.Header) { h.Set("webhook-timestamp", "-9223372036854775808") }, 0, "five minutes"},
	}
	for _, tt := range tests {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature}}
		tt.change(h)
		got := VerifyStandard(key, h, []byte(body), sent.Add(tt.later))
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestParseKey(t *testing.T) {
	for s, want := range map[string]string{
		"whsec_a2V5":     "key",
		"whsec_a2V5cw==": "keys",
		"whsec_a2V5cw":   "keys",
		"whsec_":         "",
		"a2V5":           "",
		"":               "",
		"whsec_?":        "",
		"WHSEC_a2V5":     "",
	} {
		key, err := ParseKey(s)
		if string(key) != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", s, key, err)
		}
		if err != nil && len(s) > 7 && strings.Contains(err.Error(), s) {
			t.Errorf("%q shows in %q", s, err)
		}
	}
}

func TestParseKeys(t *testing.T) {
	for list, want := range map[string]string{
		"whsec_a2V5": `["key"]`, "whsec_a2V5,whsec_a2V5cw==": `["key" "keys"]`, " whsec_a2V5 ,\twhsec_a2V5cw": `["key" "keys"]`,
		"": "[]", "whsec_a2V5,": "[]", ",whsec_a2V5": "[]", "whsec_a2V5,a2V5": "[]", "whsec_a2V5 whsec_a2V5": "[]",
	} {
		keys, err := ParseKeys(list)
		if got := fmt.Sprintf("%q", keys); got != want || (err == nil) != (want != "[]") {
			t.Errorf("%q: got %s, %v", list, got, err)
		}
	}
}

func FuzzSignatures(f *testing.F) {
	sha256, _ := ByName("sha256")
	mac := sha256.sign([]byte("key"), []byte("body"))
	for _, s := range []string{"", "sha256=", "sha256=" + hex.EncodeToString(mac), base64.StdEncoding.EncodeToString(mac),
		base64.RawURLEncoding.EncodeToString(mac), "v1," + base64.StdEncoding.EncodeToString(mac), "v1, v1,, v2,AA== v1,AA==", "SHA256=\x00", strings.Repeat("=", 50), strings.Repeat("0", 42) + "\r"} {
		f.Add(s, "1614265330")
	}
	f.Fuzz(func(t *testing.T, s, timestamp string) {
		// base64 passes over line breaks, and then has less
		if got, err := sha256.parse(s); err == nil && len(got) == sha256.size {
			// What was read says the same in either spelling.
			for _, again := range []string{hex.EncodeToString(got), "sha256=" + base64.URLEncoding.EncodeToString(got)} {
				if back, err := sha256.parse(again); err != nil || string(back) != string(got) {
					t.Errorf("%q is %x, and as %q it is %x", s, got, again, back)
				}
			}
		}
		if sha256.Verify("key", []string{s}, []byte("not the body")) {
			t.Errorf("%q fits a body that it was not made for", s)
		}
		h := http.Header{"Webhook-Id": {"id"}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {s}}
		if VerifyStandard([]byte("key"), h, []byte("body"), time.Unix(1614265330, 0)) == "" {
			t.Errorf("%q at %q fits", s, timestamp)
		}
		if key, err := ParseKey(s); err == nil && len(key) == 0 {
			t.Errorf("%q is an empty key", s)
		}
	})
}
