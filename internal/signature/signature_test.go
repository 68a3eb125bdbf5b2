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

// While keys are rotated, or several platforms have one each, any of them fits. usher signs with the first.
func TestSeveralKeys(t *testing.T) {
	sha1, _ := ByName("sha1")
	body := []byte("body")
	for keys, ok := range map[string]bool{
		"key": true, "other,key": true, " key , other": true, "other, ,key": true,
		"": false, ",": false, " , ": false, "other": false, "ke,y": false, "KEY": false,
	} {
		if got := sha1.Verify(keys, []string{sha1.Sign("key", body)}, body); got != ok {
			t.Errorf("%q: %v", keys, got)
		}
		for _, empty := range []string{sha1.Sign("", body), sha1.Sign(" ", body)} {
			if sha1.Verify(keys, []string{empty}, body) {
				t.Errorf("%q: the signature of an empty key fits", keys)
			}
		}
	}
	if a, b := sha1.Sign("key", body), sha1.Sign(" key ,other", body); a != b || len(a) != 40 {
		t.Errorf("%q and %q", a, b)
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
	if Stamp(stamped, id, sent, []byte(body), []byte("old"), key); !strings.HasSuffix(stamped.Get("webhook-signature"), " "+signature) {
		t.Errorf("with two keys: %v", stamped)
	}
	if Stamp(stamped, id, sent, []byte(body)); stamped.Get("webhook-id") != id || stamped.Get("webhook-signature") != "" {
		t.Errorf("unsigned: %v", stamped)
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
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
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
		if key, err := ParseKey(s); err == nil && len(key) == 0 {
			t.Errorf("%q is an empty key", s)
		}
	})
}
