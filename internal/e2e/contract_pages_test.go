//go:build unix

package e2e

import (
	"path/filepath"
	"testing"

	"usher/internal/testkit"
)

// A form of another origin's page is a link that somebody follows, as browsers see it: the links
// into usher's pages that are fine must not let it act. With the password at hand the browser adds it.
func TestForeignFormsDoNothing(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 422)
	u := run(t, gateAlone(rc.url, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_ADMIN_TOKEN=adm1n"))
	testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 5))
	admin := u.URL(t, "admin")
	parked := func() bool {
		return asked(t, "GET", admin+"/api/webhooks/1", "", "Authorization", "Bearer adm1n").status == 200 && rc.count() == 1
	}
	testkit.Eventually(t, "parked", parked)
	for _, path := range []string{
		"/webhooks/1/redeliver", "/webhooks/1/discard", "/redeliver", "/discard", "/pause", "/resume", "/tenant/forget", "/tenant/erase",
		"/api/webhooks/1/redeliver", "/api/webhooks/1/discard", "/api/redeliver?outcome=parked", "/api/discard?outcome=parked", "/api/pause", "/api/resume", "/api/forget", "/api/erase",
	} {
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Origin", "http://evil.test"},
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			{"Origin", "http://evil.test"},
			{"Origin", "null"},
		} {
			header = append(header, "Authorization", "Bearer adm1n", "Content-Type", "application/x-www-form-urlencoded")
			if r := asked(t, "POST", admin+path, "platform=crm&code=acme&tenant=crm/acme", header...); r.status != 403 {
				t.Errorf("%s with %q: %d %s", path, header[:4], r.status, r.body)
			}
		}
	}
	if !parked() {
		t.Error("something was done")
	}
}
