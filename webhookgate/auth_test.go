package webhookgate

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
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

// A secret is a part of what was sent, decoded or not: it is never longer.
func FuzzAuthorization(f *testing.F) {
	for _, s := range []string{"", "Bearer", "Bearer  a b ", "bearer\ta", "Basic YTpi", "Basic YTpi=", "BASIC :", "Digest a", "%41%4%zz%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		secrets := headerSecrets(&http.Request{Header: http.Header{"Authorization": {s}}}, 10)
		for _, secret := range append(secrets, unescaped(s)) {
			if len(secret) > len(s) {
				t.Errorf("%q holds the secret %q", s, secret)
			}
		}
	})
}

// strangers are requests of senders who know no secret, each as costly as one can make it within
// the 64 KiB of a head.
func strangers() map[string]func() *http.Request {
	const room = 60 << 10
	header := func(name, value string, times int) func() *http.Request {
		return func() *http.Request {
			r := request("{}")
			r.RemoteAddr = "10.0.0.1:5000"
			for range times {
				r.Header[name] = append(r.Header[name], value)
			}
			return r
		}
	}
	path := func(s string) func() *http.Request {
		return func() *http.Request { return httptest.NewRequest("POST", "/webhooks/"+s, strings.NewReader("{}")) }
	}
	fill := func(s string) string { return strings.Repeat(s, room/len(s)) }
	return map[string]func() *http.Request{
		"a path of escapes":  path(fill("%41")),
		"many segments":      path(fill("a/")),
		"a long token":       header("X-Webhook-Token", fill("a"), 1),
		"many tokens":        header("X-Webhook-Token", "a secret of the sender'z", room/42),
		"a long password":    header("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(strings.Repeat(":", room*3/4))), 1),
		"a long signature":   header("X-Signature", fill("a"), 1),
		"a padded signature": header("X-Signature", fill("="), 1),
		"a long traceparent": header("Traceparent", fill("0-"), 1),
	}
}

// strangersGate is a gate that makes the most of such a request.
func strangersGate(tb testing.TB, name string) *Gate {
	return newGate(tb, func(c *setup) {
		if strings.Contains(name, "signature") {
			c.SigningKeys = secret("key")
		} else {
			c.Tokens = tokens("a secret of the sender's", "another secret")
		}
	})
}

// What a stranger sends is compared by its length before anything of it is decoded, split or
// hashed: a request as large as it may be takes hardly more memory than a small one.
func TestStrangersCostLittle(t *testing.T) {
	for name, make := range strangers() {
		g, r := strangersGate(t, name), make()
		visit := func() {
			rec := httptest.NewRecorder()
			r.Body = http.NoBody
			if g.ServeHTTP(rec, r); rec.Code != 401 && rec.Code != 404 {
				t.Fatalf("%s: %d", name, rec.Code)
			}
		}
		visit()
		var before, after runtime.MemStats
		const runs = 10
		runtime.ReadMemStats(&before)
		for range runs {
			visit()
		}
		runtime.ReadMemStats(&after)
		count, size := (after.Mallocs-before.Mallocs)/runs, (after.TotalAlloc-before.TotalAlloc)/runs
		if count > 100 || size > 8<<10 {
			t.Errorf("%s: %d allocations, %d bytes", name, count, size)
		}
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
