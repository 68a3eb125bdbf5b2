package snapshot

import "testing"

func TestWould(t *testing.T) {
	odd := `{"code":"users","quantity":"5"}`
	for _, tc := range []struct{ name, previous, next, want string }{
		{"added", features(users5), features(users5 + "," + sso), "would have added sso"},
		{"first", "", features(users5 + "," + sso), "would have added users (5), sso"},
		{"all at once", features(users5 + "," + sso), body(users10+`,{"code":"api"}`, sub()), "would have added api, subscription Mailing (trial); removed sso; changed users 5 → 10"},
		{"nothing", features(users5), features(users5), "would have changed no feature and no subscription"},
		{"no list", features(users5), `{"type":"TenantProvisioningChange"}`, ""},
		{"a feature that cannot be read", features(sso), features(sso + "," + odd), ""},
		{"no JSON", features(sso), "{", ""},
	} {
		got := ""
		if words := Would([]byte(tc.previous), []byte(tc.next)); len(words) > 0 {
			got = words[0]
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
