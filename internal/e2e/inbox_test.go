package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// A tenant's code can be as long as a body. With an inbox it becomes part of a key on
// disk, and must not be what breaks the file for everybody else.
func TestLongCodesInTheInbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := start(t, w.environ("USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))).ready(t)
	for _, length := range []int{1, 1000, 32 << 10, 33 << 10, 64 << 10, 1 << 19} {
		r := u.send(testkit.Snapshot(strings.Repeat("x", length), 5))
		if r.status != 200 || r.header.Get("Usher-Decision") != "queued" {
			t.Errorf("a code of %d bytes: %d %.300s", length, r.status, r.body)
		}
		if again := u.send(testkit.Snapshot(strings.Repeat("x", length), 5)); again.header.Get("Usher-Decision") != "duplicate" {
			t.Errorf("a code of %d bytes again: %d %.300s", length, again.status, again.body)
		}
	}
	if r := get(t, u.admin, "/readyz"); r.status != 200 {
		t.Errorf("unready: %s", r.body)
	}
	if r := u.send(testkit.Snapshot("acme", 5)); r.status != 200 {
		t.Errorf("a good one afterwards: %d %s", r.status, r.body)
	}
	testkit.Eventually(t, "delivered", func() bool { return len(w.receiver.Deliveries()) == 7 })
}
