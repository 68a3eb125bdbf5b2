package guard

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestHosts(t *testing.T) {
	loopback := NewHosts("127.0.0.1:8080", nil, false)
	wide := NewHosts("0.0.0.0:8080", nil, false)
	keyed := NewHosts("0.0.0.0:8080", nil, true)
	named := NewHosts("usher.internal:8080", []string{"Billing.local", "[fd00::1]", "other:81", "[FD00::2]:81"}, false)
	own := NewHosts("192.0.2.7:8080", nil, false)
	for _, tc := range []struct {
		name  string
		hosts *Hosts
		host  string
		want  bool
	}{
		{"loopback", loopback, "127.0.0.1:8080", true},
		{"without a port", loopback, "127.0.0.1", true},
		{"all of 127/8", loopback, "127.9.9.9:1", true},
		{"localhost", loopback, "localhost:8080", true},
		{"any case", loopback, "LocalHost", true},
		{"IPv6", loopback, "[::1]:8080", true},
		{"IPv6 without a port", loopback, "[::1]", true},
		{"none", loopback, "", false},
		{"only a port", loopback, ":8080", false},
		{"rebound name", loopback, "evil.example:8080", false},
		{"suffix", loopback, "localhost.evil.example", false},
		{"prefix", loopback, "evil-localhost", false},
		{"mapped address", loopback, "[::ffff:127.0.0.1]:8080", false},
		{"unspecified", loopback, "0.0.0.0:8080", false},
		{"unspecified IPv6", loopback, "[::]:8080", false},
		{"short form", loopback, "127.1", false},
		{"octal", loopback, "0177.0.0.1", false},
		{"decimal", loopback, "2130706433", false},
		{"zone", loopback, "[::1%25lo]", false},
		{"IPv6 spelt out", loopback, "[0:0:0:0:0:0:0:1]", false},
		{"IPv6 without brackets", loopback, "::1", false},
		{"IPv4 in brackets", loopback, "[127.0.0.1]", false},
		{"name in brackets", loopback, "[localhost]", false},
		{"port of letters", loopback, "127.0.0.1:evil", false},
		{"two ports", loopback, "127.0.0.1:80:80", false},
		{"user info", loopback, "127.0.0.1@evil.example", false},
		{"trailing junk", loopback, "[::1]evil", false},
		{"other address", loopback, "192.0.2.7:8080", false},
		{"unspecified listener, its own spelling", wide, "0.0.0.0:8080", false},
		{"unspecified listener, loopback", wide, "127.0.0.1:8080", true},
		{"unspecified listener, an address", wide, "192.0.2.7", false},
		{"with a key, an address", keyed, "192.0.2.7:8080", true},
		{"with a key, an IPv6 address", keyed, "[fd00::9]:8080", true},
		{"with a key, a name", keyed, "evil.example", false},
		{"listener's own name", named, "usher.internal:8080", true},
		{"listener's own address", own, "192.0.2.7:8080", true},
		{"allowed name", named, "billing.local", true},
		{"allowed name with a port", named, "billing.local:99", true},
		{"allowed address", named, "[fd00::1]:8080", true},
		{"allowed with its port", named, "other:81", true},
		{"allowed with another port", named, "other:82", false},
		{"allowed address with its port", named, "[fd00::2]:81", true},
		{"allowed address with another port", named, "[fd00::2]:82", false},
		{"star", NewHosts("127.0.0.1:1", []string{"*"}, false), "evil.example", true},
		{"unix socket", NewHosts("unix:/run/usher.sock", nil, false), "whatever", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.hosts.Allowed(tc.host); got != tc.want {
				t.Errorf("%q: %v, want %v", tc.host, got, tc.want)
			}
		})
	}
}

func TestRebindable(t *testing.T) {
	h := NewHosts("usher.internal:8080", []string{"*"}, false)
	for host, want := range map[string]bool{
		"localhost": false, "LOCALHOST:8080": false, "127.0.0.1:8080": false, "[::1]:8080": false, "192.0.2.7": false, "[fd00::1]": false, "[::ffff:127.0.0.1]:1": false,
		"usher.internal:8080": true, "evil.example": true, "localhost.evil.example": true, "localhost.": true, "127.0.0.1.evil.example:8080": true, "127.1": true, "": true, ":8080": true,
	} {
		if got := h.Rebindable(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
	if NewHosts("unix:/run/usher.sock", nil, false).Rebindable("usher.internal") {
		t.Error("a unix socket")
	}
}

// What tells of a browser. A page cannot keep its browser from saying it.
func TestBrowsers(t *testing.T) {
	for _, tc := range []struct {
		name                string
		header              http.Header
		browser, navigation bool
	}{
		{"a program", http.Header{"User-Agent": {"Mozilla/5.0"}}, false, false},
		{"a page", http.Header{"Origin": {"https://evil.example"}}, true, false},
		{"a page of this very port", http.Header{"Origin": {"http://127.0.0.1:8070"}}, true, false},
		{"an opaque origin", http.Header{"Origin": {"null"}}, true, false},
		{"an empty origin", http.Header{"Origin": {""}}, true, false},
		{"an image of a page", http.Header{"Sec-Fetch-Site": {"cross-site"}}, true, false},
		{"a page of the same origin", http.Header{"Sec-Fetch-Site": {"same-origin"}}, true, false},
		{"a page of the same site", http.Header{"Sec-Fetch-Site": {"same-site"}}, true, false},
		{"two answers", http.Header{"Sec-Fetch-Site": {"none", "cross-site"}}, true, false},
		{"the address bar", http.Header{"Sec-Fetch-Site": {"none"}}, false, false},
		{"the address bar, or a page's redirect", http.Header{"Sec-Fetch-Site": {"none"}, "Sec-Fetch-Mode": {"navigate"}}, false, true},
		{"a form", http.Header{"Sec-Fetch-Mode": {"navigate"}}, false, true},
		{"Node's fetch", http.Header{"Sec-Fetch-Mode": {"cors"}}, false, false},
	} {
		if b, n := FromBrowser(tc.header), Navigation(tc.header); b != tc.browser || n != tc.navigation {
			t.Errorf("%s: %t, %t", tc.name, b, n)
		}
	}
}

func FuzzHosts(f *testing.F) {
	for _, s := range []string{"127.0.0.1:8080", "[::1]:80", "[::1", "a:b:c", "[]:1", ":"} {
		f.Add(s)
	}
	h := NewHosts("127.0.0.1:8080", nil, false)
	f.Fuzz(func(t *testing.T, host string) {
		name := (&url.URL{Host: host}).Hostname()
		addr, err := netip.ParseAddr(name)
		if h.Allowed(host) && !strings.EqualFold(name, "localhost") && (err != nil || !addr.IsLoopback()) {
			t.Fatalf("%q is allowed", host)
		}
	})
}

func TestEqual(t *testing.T) {
	if !Equal("k", "k") || Equal("k", "K") || Equal("", "") || Equal("k", "") || Equal("", "k") {
		t.Error("wrong verdict")
	}
}

func TestBearer(t *testing.T) {
	for value, want := range map[string]string{
		"Bearer abc": "abc", "bearer  abc": "abc", "BEARER abc ": "abc",
		"Basic abc": "", "Bearer": "", "": "", "abc": "",
	} {
		if got := Bearer(http.Header{"Authorization": {value}}); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}
