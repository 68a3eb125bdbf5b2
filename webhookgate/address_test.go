package webhookgate

import (
	"net/http/httptest"
	"net/netip"
	"testing"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestSenderAddress(t *testing.T) {
	trusted := prefixes("10.0.0.0/8", "fd00::/8")
	tests := []struct {
		peer string
		xff  []string
		want string // empty: can't be told
	}{
		{"203.0.113.9:5000", nil, "203.0.113.9"},
		{"203.0.113.9:5000", []string{"198.51.100.1"}, "203.0.113.9"}, // who says so?
		{"[2001:db8::1]:5000", nil, "2001:db8::1"},
		{"[fe80::1%eth0]:5000", nil, "fe80::1"},
		{"[::ffff:203.0.113.9]:5000", nil, "203.0.113.9"},
		{"@", nil, ""},
		{"", []string{"203.0.113.9"}, ""},
		{"10.0.0.1:5000", nil, "10.0.0.1"},
		{"10.0.0.1:5000", []string{"203.0.113.9"}, "203.0.113.9"},
		{"[::ffff:10.0.0.1]:5000", []string{"203.0.113.9"}, "203.0.113.9"},
		{"[fd00::1]:5000", []string{"2001:db8::1"}, "2001:db8::1"},
		{"10.0.0.1:5000", []string{"198.51.100.1, 203.0.113.9"}, "203.0.113.9"}, // the left one is his own word
		{"10.0.0.1:5000", []string{"198.51.100.1", "203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"10.0.0.1:5000", []string{"203.0.113.9,10.0.0.3", "10.0.0.2"}, "203.0.113.9"},
		{"10.0.0.1:5000", []string{"203.0.113.9:61000"}, "203.0.113.9"},
		{"10.0.0.1:5000", []string{"[2001:db8::1]:61000"}, "2001:db8::1"},
		{"10.0.0.1:5000", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"10.0.0.1:5000", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"10.0.0.1:5000", []string{"203.0.113.9, ::ffff:10.0.0.2"}, "203.0.113.9"},
		{"10.0.0.1:5000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"10.0.0.1:5000", []string{"rubbish, 203.0.113.9"}, "203.0.113.9"},
		{"10.0.0.1:5000", []string{"203.0.113.9, rubbish"}, ""},
		{"10.0.0.1:5000", []string{"203.0.113.9, rubbish, 10.0.0.2"}, ""},
		{"10.0.0.1:5000", []string{"203.0.113.9, unknown"}, ""},
		{"10.0.0.1:5000", []string{"203.0.113.9,"}, ""},
		{"10.0.0.1:5000", []string{"203.0.113.9", ""}, ""},
		{"10.0.0.1:5000", []string{"203.0.113.09"}, ""},
		{"10.0.0.1:5000", []string{`"203.0.113.9"`}, ""},
	}
	for _, tt := range tests {
		r := httptest.NewRequest("POST", "/webhooks", nil)
		r.RemoteAddr = tt.peer
		r.Header["X-Forwarded-For"] = tt.xff
		addr := senderAddr(r, trusted)
		if addr.IsValid() != (tt.want != "") || addr.IsValid() && addr.String() != tt.want {
			t.Errorf("%s %q: got %v, want %q", tt.peer, tt.xff, addr, tt.want)
		}
	}
}

func TestAllowedAddresses(t *testing.T) {
	g := newGate(t, func(c *setup) {
		c.AllowCIDRs = prefixes("203.0.113.0/24", "2001:db8::/32", "198.51.100.0/24")
		c.TrustedProxies = prefixes("10.0.0.0/8")
	})
	for _, tt := range []struct {
		peer, xff string
		want      int
	}{
		{"203.0.113.9:1", "", 200},
		{"[::ffff:203.0.113.9]:1", "", 200},
		{"[2001:db8::5]:1", "", 200},
		{"198.51.100.7:1", "", 200},
		{"192.0.2.1:1", "", 403},
		{"192.0.2.1:1", "203.0.113.9", 403},
		{"10.0.0.1:1", "203.0.113.9", 200},
		{"10.0.0.1:1", "203.0.113.9, 192.0.2.1", 403},
		{"10.0.0.1:1", "203.0.113.9, what", 403},
		{"10.0.0.1:1", "", 403},
		{"@", "", 403},
	} {
		r := request(documented)
		r.RemoteAddr = tt.peer
		if tt.xff != "" {
			r.Header.Set("X-Forwarded-For", tt.xff)
		}
		if got := serve(t, g, r); got.Code != tt.want {
			t.Errorf("%s %q: got %v, want %d", tt.peer, tt.xff, got, tt.want)
		}
	}
}

func TestUnreadableHopsAreFineWhereNobodyAsks(t *testing.T) {
	g := newGate(t, func(c *setup) { c.TrustedProxies = prefixes("192.0.2.0/24") })
	if got := post(t, g, documented, "X-Forwarded-For", "unknown"); got.Code != 200 {
		t.Error(got)
	}
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"", "203.0.113.9", "203.0.113.9:80", "[::1]", "[::1]:80", "::ffff:1.2.3.4", "fe80::1%eth0",
		"a, b", "1.2.3.4,, 10.0.0.1", "[1.2.3.4]", "10.0.0.1, 10.0.0.2\t", "%"} {
		f.Add(s, "10.0.0.1:5000")
	}
	trusted := prefixes("10.0.0.0/8")
	f.Fuzz(func(t *testing.T, xff, peer string) {
		r := httptest.NewRequest("POST", "/webhooks", nil)
		r.RemoteAddr = peer
		r.Header["X-Forwarded-For"] = []string{xff}
		addr := senderAddr(r, trusted)
		if !addr.IsValid() {
			return
		}
		if addr.Zone() != "" || addr.Is4In6() {
			t.Errorf("%q from %q: %v", xff, peer, addr)
		}
		// Whatever a sender writes to the left changes nothing, unless there
		// were only proxies.
		if !contains(trusted, addr) {
			r.Header["X-Forwarded-For"] = []string{"198.51.100.1," + xff}
			if again := senderAddr(r, trusted); again != addr {
				t.Errorf("%q from %q: %v, and with a forged hop %v", xff, peer, addr, again)
			}
		}
	})
}
