//go:build unix

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// Somebody who knows the gate's secret sends bodies that are small, and large to look at. Whoever looks at
// them, on the page, through the API or with a command, sees their beginning, and what was left out. Without an
// inbox there is the page alone, and what is wrong with them.
func TestLookingAtHostileBodies(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("0,", n) + "0" }
	deep := strings.Repeat("[", 9900) + zeros(25_000) + strings.Repeat("]", 9900)
	name := `{"` + strings.Repeat("n", 600_000) + `":[` + zeros(2000) + `],"type":"TenantProvisioningChange"}`
	faults := `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":[` + strings.TrimSuffix(strings.Repeat(`{"code":1},`, 30_000), ",") + `]}}}`
	small := strings.Repeat("[", 5000) + zeros(2900) + strings.Repeat("]", 5000)
	rc := newReceiver(t, 200)
	for mode, tc := range map[string]struct {
		settings []string
		prefix   string // of ids
		bodies   []string
	}{
		"inbox":        {[]string{"USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db")}, "", []string{deep, name, faults}},
		"pass-through": {nil, "d", []string{small, faults}},
	} {
		t.Run(mode, func(t *testing.T) {
			u := run(t, gateAlone(rc.url, tc.settings...))
			u.Ready(t)
			admin := u.URL(t, "admin")
			for i, body := range tc.bodies {
				if r := asked(t, "POST", hooks(t, u), body, "Content-Type", "application/json"); r.status != 400 && r.status != 422 {
					t.Fatalf("%d %s", r.status, r.body)
				}
				id := tc.prefix + string(rune('1'+i))
				page := asked(t, "GET", admin+"/webhooks/"+id, "").body
				if mode == "pass-through" {
					want := map[string]string{small: "is nested more than 64 deep", faults: "has 29981 more faults"}[body]
					if len(page) > 3<<20 || !strings.Contains(page, want) {
						t.Errorf("%.20s: no %q on the page of %d KB", body, want, len(page)>>10)
					}
					continue
				}
				api := asked(t, "GET", admin+"/api/webhooks/"+id, "").body
				code, show, stderr := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(admin, "http://")}, "inbox", "show", id)
				if code != 0 || max(len(page), len(api), len(show)) > 3<<20 {
					t.Errorf("%.20s: page %d KB, API %d KB, show %d: %d KB %s", body, len(page)>>10, len(api)>>10, code, len(show)>>10, stderr)
				}
				want := map[string]string{deep: "is nested more than 64 deep", name: "is missing", faults: "has 29951 more faults"}[body]
				for where, text := range map[string]string{"page": page, "API": api, "show": show} {
					if !strings.Contains(text, want) {
						t.Errorf("%.20s: no %q on the %s: %.500s", body, want, where, text)
					}
					left := map[string]string{"page": "Only the beginning is shown", "API": `"payload_left_out"`, "show": "of the payload are left out"}[where]
					if cut := body != deep; strings.Contains(text, left) != cut {
						t.Errorf("%.20s: left out, as the %s says: %t", body, where, !cut)
					}
				}
				if whole := asked(t, "GET", admin+"/webhooks/"+id+"/payload", ""); whole.body != body {
					t.Errorf("%.20s: the download has %d bytes", body, len(whole.body))
				}
			}
			if list := asked(t, "GET", admin+"/webhooks", "").body; !strings.Contains(list, "and 29999 more") {
				t.Errorf("the list does not say how many faults there are: %s", list)
			}
		})
	}
}
