package admin

import (
	"testing"

	"usher/internal/testkit/inboxtest"
)

// No link of another site downloads a payload, which has customers' contacts; a link of this port does.
func TestNoLinkDownloadsAPayload(t *testing.T) {
	b := inboxtest.Open(t)
	b.Take("", "acme", inboxtest.Snapshot("", "acme", "users"))
	h := New(port(b))
	for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200} {
		if status, body := ask(h, "GET", "/webhooks/1/payload", "", "Sec-Fetch-Site", site, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"); status != want {
			t.Errorf("%s: %d %s", site, status, body)
		}
	}
}
