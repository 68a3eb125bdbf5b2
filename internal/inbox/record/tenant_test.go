package record

import (
	"strings"
	"testing"
	"unicode"
)

// A tenant is shown so that it can be told from others, copied, and read again: what cannot be seen, or turns the
// writing around, is percent-encoded, too.
func TestTenantNames(t *testing.T) {
	for _, tc := range []struct{ platform, tenant, want string }{
		{"", "acme", "acme"},
		{"eu", "acme", "eu/acme"},
		{"a/b", "100%", "a%2Fb/100%25"},
		{"eu", "Brücke & Söhne", "eu/Brücke & Söhne"},
		{"eu", "rtl\u202egpj.exe", "eu/rtl%E2%80%AEgpj.exe"},
		{"eu", "a\x1b[31m\nb\u00a0", "eu/a%1B[31m%0Ab%C2%A0"},
	} {
		shown := ShowTenant(tc.platform, tc.tenant)
		if shown != tc.want || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q, want %q", shown, tc.want)
		}
		name, err := ParseTenant(Exact(tc.platform, tc.tenant))
		if err != nil || name.Tenant != tc.tenant || name.Platform == nil || *name.Platform != tc.platform {
			t.Errorf("%q is read as %+v, %v", shown, name, err)
		}
	}
}
