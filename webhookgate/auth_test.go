package webhookgate

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"testing"

	"usher/internal/guard"
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
		{"basic, secret as user", []string{"Authorization", basic("old:")}, false},
		{"basic, no colon", []string{"Authorization", basic("old")}, false},
		{"basic, not base64", []string{"Authorization", "Basic :old"}, false},
		{"basic, and what is not base64 after it", []string{"Authorization", basic("u:old") + "::"}, false},
		{"own header", []string{"X-Webhook-Token", "old"}, true},
		{"own header, wrong", []string{"X-Webhook-Token", "Bearer old"}, false},
		{"own header, empty", []string{"X-Webhook-Token", ""}, false},
		{"one of two places", []string{"Authorization", "Bearer wrong", "X-Webhook-Token", "old"}, true},
		{"look-alike", []string{"X_Webhook_Token", "old"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate(t, func(c *setup) { c.Tokens = tokens("old", "", "new:er") })
			got := post(t, g, documented, tt.header...)
			if want := map[bool]int{true: 200, false: 401}[tt.ok]; got.Code != want {
				t.Errorf("got %v, want %d", got, want)
			}
			for _, list := range [][]string{nil, {""}, {"", ""}} {
				shut := newGate(t, func(c *setup) { c.Tokens = tokens(list...) })
				if got := post(t, shut, documented, tt.header...); got.Code != 401 {
					t.Errorf("with the secrets %q: %v", list, got)
				}
			}
		})
	}
}

func TestTokensRotate(t *testing.T) {
	current := "first"
	g := newGate(t, func(c *setup) { c.Tokens = func() string { return current } })
	if got := post(t, g, documented, "X-Webhook-Token", "first"); got.Code != 200 {
		t.Error(got)
	}
	current = "second"
	if got := post(t, g, documented, "X-Webhook-Token", "first"); got.Code != 401 {
		t.Error(got)
	}
}

// Package signature tests how a signature may be spelled.
func TestHMAC(t *testing.T) {
	good := hex.EncodeToString(sha256MAC([]byte("key"), []byte(documented)))
	for _, tt := range []struct {
		name, key, body string
		signatures      []string
		want            int
	}{
		{"none", "key", documented, nil, 401},
		{"good", "key", documented, []string{good}, 200},
		{"another key", "other key", documented, []string{good}, 401},
		{"another body", "key", snapshotOf("acme", "A"), []string{good}, 401},
		{"checked before the JSON is", "key", "{", []string{good}, 401},
		{"twice", "key", documented, []string{good, good}, 401},
		{"an empty key signs nothing", "", documented, []string{hex.EncodeToString(sha256MAC(nil, []byte(documented)))}, 401},
	} {
		var header []string
		for _, s := range tt.signatures {
			header = append(header, "X-Hub-Signature", s)
		}
		g := newGate(t, func(c *setup) { c.SigningKeys, c.SignatureHeader = secret(tt.key), "x-hub-signature" })
		if got := post(t, g, tt.body, header...); got.Code != tt.want {
			t.Errorf("%s: %v, want %d", tt.name, got, tt.want)
		}
	}
}

func TestEverythingConfiguredMustPass(t *testing.T) {
	mac := hex.EncodeToString(sha256MAC([]byte("key"), []byte(documented)))
	g := newGate(t, func(c *setup) {
		c.Tokens, c.SigningKeys = tokens("good"), secret("key")
	})
	for want, change := range map[int]func(*http.Request){
		200: func(*http.Request) {},
		401: func(r *http.Request) { r.Header.Del("X-Webhook-Token") },
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

// A gate without a secret takes webhooks from programs, and not from a web page: the browser that shows it
// may run on this machine.
func TestWebPages(t *testing.T) {
	unchecked := newGate(t, func(c *setup) { c.Hosts = guard.NewHosts("127.0.0.1:8090", []string{"gate.internal"}, false) })
	checked := newGate(t, func(c *setup) { c.Tokens = tokens("good") })
	for _, tt := range []struct {
		name, host string
		header     []string
		want       int
	}{
		{"a program", "127.0.0.1:8090", nil, 200},
		{"an allowed name", "gate.internal", nil, 200},
		{"a page of another site", "127.0.0.1:8090", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"}, 403},
		{"a form", "127.0.0.1:8090", []string{"Sec-Fetch-Mode", "navigate"}, 403},
		{"a rebound name", "evil.example:8090", nil, 421},
	} {
		r := request(documented, tt.header...)
		r.Host = tt.host
		if got := serve(t, unchecked, r); got.Code != tt.want {
			t.Errorf("%s: %v, want %d", tt.name, got, tt.want)
		}
		r = request(documented, append(tt.header, "X-Webhook-Token", "good")...)
		r.Host = tt.host
		if got := serve(t, checked, r); got.Code != 200 {
			t.Errorf("%s, with the secret: %v", tt.name, got)
		}
	}
}
