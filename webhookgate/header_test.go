package webhookgate

import (
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// received lets one webhook through a gate and returns what the receiver got.
func received(t *testing.T, change func(*setup), r *http.Request) *http.Request {
	t.Helper()
	var got *http.Request
	g := newGate(t, func(c *setup) {
		c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			got = r
			return respond(200, ""), nil
		})
		if change != nil {
			change(c)
		}
	})
	if a := serve(t, g, r); a.Code != 200 {
		t.Fatalf("not forwarded: %v", a)
	}
	return got
}

func TestHeadersForwarded(t *testing.T) {
	ours := []string{"Webhook-Id", "Webhook-Timestamp", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}
	withToken := func(c *setup) { c.Tokens = tokens("good") }
	tests := []struct {
		name   string
		change func(*setup)
		sent   []string // names; the values are "v"
		want   []string // beside ours
	}{
		{"end to end", nil, []string{"Content-Type", "X-Custom", "Accept", "Accept-Encoding", "Idempotency-Key", "Cookie", "Webhook-Other"},
			[]string{"Content-Type", "X-Custom", "Accept", "Accept-Encoding", "Idempotency-Key", "Cookie", "Webhook-Other"}},
		{"hop by hop", nil, []string{"Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
			"Transfer-Encoding", "Upgrade", "Expect", "Transfer_encoding", "V"}, nil}, // V: named by Connection
		{"forwarding claims", nil, []string{"X-Forwarded-Port", "X_forwarded_for", "X_Forwarded-Host", "X-Forwarded_Proto", "Forwarded", "X-Real-Ip", "X_Real_IP"}, nil},
		{"another's webhook headers", nil, []string{"Webhook-Signature", "webhook_id", "Webhook_Timestamp", "webhook.signature", "Webhook_Other"}, nil},
		{"a source that only usher may name", nil, []string{"Usher-Source", "usher_source", "Usher_Source", "USHER-SOURCE"}, nil},
		{"secrets that are checked", withToken, []string{"X_Webhook_Token", "X-Webhook_token", "X.Webhook.Token", "X-Signature"}, []string{"Authorization", "X-Signature"}},
		{"secrets that are not", nil, []string{"Authorization", "X-Webhook-Token", "X_Webhook_Token", "X-Signature"}, []string{"Authorization", "X-Webhook-Token", "X-Signature"}},
		{"look-alikes of what receivers check", nil, []string{"X_Signature", "X-signature.", "AUTHORIZATION_", "X_SIGNATURE", "authorization!"}, []string{"X-signature.", "AUTHORIZATION_", "authorization!"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request(documented)
			for _, name := range tt.sent {
				r.Header[name] = []string{"v"}
			}
			if tt.change != nil {
				r.Header.Set("X-Webhook-Token", "good")
			}
			got := slices.Sorted(maps.Keys(received(t, tt.change, r).Header))
			want := slices.Sorted(slices.Values(slices.Concat(ours, tt.want)))
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// A receiver's own checks of the service go on working: the signature arrives as it was sent, and the first token as
// the service sends it, however the sender has proved that it knows one.
func TestReceiversOwnChecks(t *testing.T) {
	signature := "sha256=" + hex.EncodeToString(sha256MAC([]byte("key"), []byte(documented)))
	both := func(c *setup) {
		c.Tokens, c.SigningKeys, c.SignatureHeader = tokens(" s3cret ", "0ther"), secret("new,key"), "x-sig"
	}
	for name, send := range map[string]func() *http.Request{
		"bearer":  func() *http.Request { return request(documented, "Authorization", "Bearer 0ther") },
		"basic":   func() *http.Request { r := request(documented); r.SetBasicAuth("u", "0ther"); return r },
		"header":  func() *http.Request { return request(documented, "X-Webhook-Token", "0ther") },
		"address": func() *http.Request { r := request(documented); r.URL.Path = "/webhooks/0ther"; return r },
	} {
		r := send()
		r.Header.Set("X-Sig", signature)
		r.Header["X_sig"] = []string{"v"}
		got := received(t, both, r).Header
		if !slices.Equal(got["X-Sig"], []string{signature}) || !slices.Equal(got["Authorization"], []string{"Bearer s3cret"}) {
			t.Errorf("%s: %v", name, got)
		}
		if len(got) != 7 || strings.Contains(fmt.Sprint(got), "0ther") {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := received(t, nil, request(documented, "X-Signature", "as it is", "Authorization", "Bearer mine")).Header; got.Get("X-Signature") != "as it is" || got.Get("Authorization") != "Bearer mine" {
		t.Errorf("without a check: %v", got)
	}
}

// A proxy may write the address in another spelling than it came in.
func TestPathSecretStaysHereInAnySpelling(t *testing.T) {
	for _, tt := range []struct{ sent, header string }{
		{"/webhooks/a%2fb", "/webhooks/a%2Fb"},
		{"/webhooks/a%2Fb", "/webhooks/%61%2fb?x=%2B"},
		{"/webhooks/a%2Fb", "https://gate.example/webhooks/a/b"},
		{"/webhooks/%61%2Fb", "/webhooks/a%2Fb"},
		{"/webhooks/a%2Fb", "/webhooks/%61%2fb?discount=100%"}, // what follows is the sender's, and need not be valid
		{"/webhooks/a%2Fb", "/50%/webhooks/%61%2fb"},
	} {
		r := httptest.NewRequest("POST", tt.sent, strings.NewReader(documented))
		r.Header.Set("X-Original-Uri", tt.header)
		if got := received(t, func(c *setup) { c.Tokens = tokens("a/b") }, r).Header.Get("X-Original-Uri"); got != "" {
			t.Errorf("sent to %s, the receiver got %q", tt.sent, got)
		}
	}
}

func TestForwardedFor(t *testing.T) {
	for _, tt := range []struct {
		peer string
		sent []string
		want string // for, host, proto
	}{
		{"203.0.113.9:1", nil, "203.0.113.9 example.com http"},
		{"[::ffff:203.0.113.9]:1", nil, "203.0.113.9 example.com http"},
		{"@", nil, " example.com http"},
		{"203.0.113.9:1", []string{"X-Forwarded-For", "1.1.1.1", "X-Forwarded-Host", "evil", "X-Forwarded-Proto", "https"}, "203.0.113.9 example.com http"},
	} {
		r := request(documented, tt.sent...)
		r.RemoteAddr = tt.peer
		h := received(t, nil, r).Header
		if got := h.Get("X-Forwarded-For") + " " + h.Get("X-Forwarded-Host") + " " + h.Get("X-Forwarded-Proto"); got != tt.want {
			t.Errorf("from %s with %q: got %q, want %q", tt.peer, tt.sent, got, tt.want)
		}
	}
	r := request(documented)
	r.TLS = new(tls.ConnectionState)
	if got := received(t, nil, r).Header.Get("X-Forwarded-Proto"); got != "https" {
		t.Errorf("over TLS: %s", got)
	}
}

func TestWhatTheReceiverGets(t *testing.T) {
	odd := " " + documented + "\n" // every byte counts
	r := request(odd, "Content-Type", "application/json; charset=utf-8", "X-Many", "1", "X-Many", "2")
	r.URL.RawQuery = "secret=maybe"
	var body string
	var sent *http.Request
	g := newGate(t, func(c *setup) {
		c.URL, _ = url.Parse("http://us%40er:pa%3Ass@receiver.test:3000/hook/%2F?tenant=x&a=b")
		c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			b, _ := io.ReadAll(r.Body)
			body, sent = string(b), r
			return respond(201, ""), nil
		})
	})
	if got := serve(t, g, r); got.Code != 200 || got.Webhook != sent.Header.Get("Webhook-Id") || got.Tries != 1 {
		t.Errorf("%v", got)
	}
	if sent.Method != "POST" || sent.URL.String() != "http://receiver.test:3000/hook/%2F?tenant=x&a=b" || sent.Host != "receiver.test:3000" {
		t.Errorf("%s %s at %s", sent.Method, sent.URL, sent.Host)
	}
	if body != odd || sent.ContentLength != int64(len(odd)) || sent.GetBody != nil || sent.Body == nil {
		t.Errorf("%d bytes, Content-Length %d, GetBody %v", len(body), sent.ContentLength, sent.GetBody != nil)
	}
	if user, password, ok := sent.BasicAuth(); !ok || user != "us@er" || password != "pa:ss" {
		t.Errorf("Basic auth %q %q %v", user, password, ok)
	}
	if got := sent.Header["X-Many"]; !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("X-Many: %q", got)
	}
	if got := sent.Header.Get("Content-Type"); got != "application/json; charset=utf-8" {
		t.Errorf("Content-Type: %q", got)
	}
}
