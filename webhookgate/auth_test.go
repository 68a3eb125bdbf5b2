package webhookgate

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestToken(t *testing.T) {
	basic := func(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }
	tests := []struct {
		name   string
		header []string
		ok     bool
	}{
		{"none", nil, false},
		{"bearer", []string{"Authorization", "Bearer old"}, true},
		{"the other one", []string{"Authorization", "Bearer new:er"}, true},
		{"scheme in any case", []string{"Authorization", "bEARER old"}, true},
		{"two spaces", []string{"Authorization", "Bearer  old"}, true},
		{"wrong", []string{"Authorization", "Bearer older"}, false},
		{"a prefix", []string{"Authorization", "Bearer ol"}, false},
		{"in another case", []string{"Authorization", "Bearer OLD"}, false},
		{"empty", []string{"Authorization", "Bearer "}, false},
		{"no scheme", []string{"Authorization", "old"}, false},
		{"another scheme", []string{"Authorization", "Digest old"}, false},
		{"basic", []string{"Authorization", basic("anyone:old")}, true},
		{"basic with a colon in the password", []string{"Authorization", basic("anyone:new:er")}, true},
		{"basic without a user", []string{"Authorization", basic(":old")}, true},
		{"basic without padding", []string{"Authorization", strings.TrimRight(basic("ab:old"), "=")}, true},
		{"basic, secret as user", []string{"Authorization", basic("old:")}, false},
		{"basic, no colon", []string{"Authorization", basic("old")}, false},
		{"basic, not base64", []string{"Authorization", "Basic :old"}, false},
		{"own header", []string{"X-Webhook-Token", "old"}, true},
		{"own header, wrong", []string{"X-Webhook-Token", "Bearer old"}, false},
		{"own header, empty", []string{"X-Webhook-Token", ""}, false},
		{"own header, twice", []string{"X-Webhook-Token", "wrong", "X-Webhook-Token", "old"}, true},
		{"one of two places", []string{"Authorization", "Bearer wrong", "X-Webhook-Token", "old"}, true},
		{"look-alike", []string{"X_Webhook_Token", "old"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate(t, func(c *Config) { c.Tokens = tokens("old", "", "new:er") })
			got := post(t, g, documented, tt.header...)
			if want := map[bool]int{true: 200, false: 401}[tt.ok]; got.Code != want {
				t.Errorf("got %v, want %d", got, want)
			}
			for _, list := range [][]string{nil, {""}, {"", ""}} {
				shut := newGate(t, func(c *Config) { c.Tokens = tokens(list...) })
				if got := post(t, shut, documented, tt.header...); got.Code != 401 {
					t.Errorf("with the secrets %q: %v", list, got)
				}
			}
		})
	}
}

func TestTokensRotate(t *testing.T) {
	current := "first"
	g := newGate(t, func(c *Config) { c.Tokens = func() []string { return []string{current} } })
	if got := post(t, g, documented, "X-Webhook-Token", "first"); got.Code != 200 {
		t.Error(got)
	}
	current = "second"
	if got := post(t, g, documented, "X-Webhook-Token", "first"); got.Code != 401 {
		t.Error(got)
	}
}

func TestHMAC(t *testing.T) {
	mac := sign([]byte("key"), []byte(documented))
	std, raw := base64.StdEncoding.EncodeToString(mac), base64.RawURLEncoding.EncodeToString(mac)
	wrong := hex.EncodeToString(sign([]byte("other key"), []byte(documented)))
	tests := []struct {
		name       string
		signatures []string
		ok         bool
	}{
		{"none", nil, false},
		{"hex", []string{hex.EncodeToString(mac)}, true},
		{"HEX", []string{strings.ToUpper(hex.EncodeToString(mac))}, true},
		{"hex with prefix", []string{"sha256=" + hex.EncodeToString(mac)}, true},
		{"base64", []string{std}, true},
		{"base64 with prefix", []string{"SHA256=" + std}, true},
		{"base64 for URLs, no padding", []string{raw}, true},
		{"wrong key", []string{wrong}, false},
		{"cut short", []string{hex.EncodeToString(mac)[:62]}, false},
		{"prefix only", []string{"sha256="}, false},
		{"empty", []string{""}, false},
		{"another digest", []string{"sha512=" + std}, false},
		{"twice", []string{std, std}, false},
		{"a list", []string{std + "," + std}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			header := []string{}
			for _, s := range tt.signatures {
				header = append(header, "X-Hub-Signature", s)
			}
			g := newGate(t, func(c *Config) { c.HMACSecret, c.HMACHeader = secret("key"), "x-hub-signature" })
			got := post(t, g, documented, header...)
			if want := map[bool]int{true: 200, false: 401}[tt.ok]; got.Code != want {
				t.Errorf("got %v, want %d", got, want)
			}
			shut := newGate(t, func(c *Config) { c.HMACSecret, c.HMACHeader = secret(""), "x-hub-signature" })
			if got := post(t, shut, documented, header...); got.Code != 401 {
				t.Errorf("with an empty secret: %v", got)
			}
		})
	}
	t.Run("checked before the JSON is", func(t *testing.T) {
		g := newGate(t, func(c *Config) { c.HMACSecret = secret("key") })
		if got := post(t, g, "{", "X-Signature", std); got.Code != 401 {
			t.Error(got)
		}
	})
	t.Run("an empty key signs nothing", func(t *testing.T) {
		g := newGate(t, func(c *Config) { c.HMACSecret = secret("") })
		forged := hex.EncodeToString(sign(nil, []byte(documented)))
		if got := post(t, g, documented, "X-Signature", forged); got.Code != 401 {
			t.Error(got)
		}
	})
}

func TestSignatureAlgorithms(t *testing.T) {
	for name, a := range algorithms {
		mac := a.sign([]byte("key"), []byte(documented))
		hexed, based := hex.EncodeToString(mac), base64.StdEncoding.EncodeToString(mac)
		for signature, want := range map[string]int{
			hexed: 200, strings.ToUpper(hexed): 200, based: 200, strings.TrimRight(based, "="): 200, base64.URLEncoding.EncodeToString(mac): 200,
			name + "=" + hexed: 200, strings.ToUpper(name) + "=" + based: 200,
			"md5=" + hexed: 401, hexed[:len(hexed)-2]: 401, hexed + "00": 401, "": 401,
		} {
			for gate := range algorithms {
				g := newGate(t, func(c *Config) { c.HMACSecret, c.HMACAlgorithm = secret("key"), gate })
				expect := want
				if gate != name {
					expect = 401 // never another than the one that was asked for
				}
				if got := post(t, g, documented, "X-Signature", signature); got.Code != expect {
					t.Errorf("%q at a gate with %s: got %v, want %d", signature, gate, got, expect)
				}
			}
		}
	}
	// RFC 2202, test case 2: not only in agreement with ourselves.
	if got := hex.EncodeToString(algorithms["sha1"].sign([]byte("Jefe"), []byte("what do ya want for nothing?"))); got != "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79" {
		t.Error(got)
	}
	if _, err := New(Config{ForwardURL: &url.URL{Scheme: "http", Host: "r"}, HMACAlgorithm: "md5"}); err == nil {
		t.Error("md5 is accepted")
	}
}

func TestStandardWebhooks(t *testing.T) {
	// The example of the specification's reference libraries.
	key, err := ParseSecretKey("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	const id, at, body, signature = "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := signStandard(key, id, at, []byte(body)); got != signature {
		t.Errorf("signature %s, want %s", got, signature)
	}
	sent := time.Unix(1614265330, 0)
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
		got := verifyStandard(key, h, []byte(body), sent.Add(tt.later))
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestStandardWebhooksAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const good = "whsec_a2V5"
		now := strconv.FormatInt(time.Now().Unix(), 10)
		headers := []string{"Webhook-Id", "m1", "Webhook-Timestamp", now, "Webhook-Signature", signStandard([]byte("key"), "m1", now, []byte(documented))}
		for key, want := range map[string]int{good: 200, "whsec_b3RoZXI=": 401, "": 401, "key": 401} {
			g := newGate(t, func(c *Config) { c.HMACSecret, c.HMACStandard = secret(key), true })
			if got := post(t, g, documented, headers...); got.Code != want {
				t.Errorf("key %q: got %v, want %d", key, got, want)
			}
		}
	})
}

func TestParseSecretKey(t *testing.T) {
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
		key, err := ParseSecretKey(s)
		if string(key) != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", s, key, err)
		}
		if err != nil && len(s) > 7 && strings.Contains(err.Error(), s) {
			t.Errorf("%q shows in %q", s, err)
		}
	}
}

func TestEverythingConfiguredMustPass(t *testing.T) {
	mac := hex.EncodeToString(sign([]byte("key"), []byte(documented)))
	g := newGate(t, func(c *Config) {
		c.Tokens, c.HMACSecret = tokens("good"), secret("key")
		c.AllowCIDRs = prefixes("192.0.2.0/24")
	})
	for want, change := range map[int]func(*http.Request){
		200: func(*http.Request) {},
		401: func(r *http.Request) { r.Header.Del("X-Webhook-Token") },
		403: func(r *http.Request) { r.RemoteAddr = "198.51.100.1:1" },
	} {
		r := request(documented, "X-Webhook-Token", "good", "X-Signature", mac)
		change(r)
		if got := serve(t, g, r); got.Code != want {
			t.Errorf("got %v, want %d", got, want)
		}
	}
	if got := post(t, g, documented, "X-Webhook-Token", "good"); got.Code != 401 {
		t.Errorf("without a signature: %v", got)
	}
}

func FuzzSignatures(f *testing.F) {
	mac := sign([]byte("key"), []byte("body"))
	for _, s := range []string{"", "sha256=", "sha256=" + hex.EncodeToString(mac), base64.StdEncoding.EncodeToString(mac),
		base64.RawURLEncoding.EncodeToString(mac), "v1," + base64.StdEncoding.EncodeToString(mac), "v1, v1,, v2,AA== v1,AA==", "SHA256=\x00", strings.Repeat("=", 50)} {
		f.Add(s, "1614265330")
	}
	f.Fuzz(func(t *testing.T, s, timestamp string) {
		if got, ok := algorithms["sha256"].parse(s); ok {
			// What was read says the same in either spelling.
			for _, again := range []string{hex.EncodeToString(got), "sha256=" + base64.URLEncoding.EncodeToString(got)} {
				if back, ok := algorithms["sha256"].parse(again); !ok || string(back) != string(got) {
					t.Errorf("%q is %x, and as %q it is %x", s, got, again, back)
				}
			}
		}
		if algorithms["sha256"].verify("key", []string{s}, []byte("not the body")) {
			t.Errorf("%q fits a body that it was not made for", s)
		}
		list := standardSignatures(s)
		if len(list) > len(s) {
			t.Errorf("%d signatures in %q", len(list), s)
		}
		h := http.Header{"Webhook-Id": {"id"}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {s}}
		if verifyStandard([]byte("key"), h, []byte("body"), time.Unix(1614265330, 0)) == "" {
			t.Errorf("%q at %q fits", s, timestamp)
		}
		for _, secret := range headerSecrets(http.Header{"Authorization": {s}}) {
			if len(secret) > len(s) {
				t.Errorf("%q holds the secret %q", s, secret)
			}
		}
		if key, err := ParseSecretKey(s); err == nil && len(key) == 0 {
			t.Errorf("%q is an empty key", s)
		}
	})
}
