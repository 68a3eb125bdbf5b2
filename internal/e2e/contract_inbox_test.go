//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// onInboxes runs a test on an inbox in a file, and thoroughly on one in a database: it takes three times as
// long there, and what is promised does not depend on it.
func onInboxes(t *testing.T, test func(t *testing.T, inbox string)) {
	if thorough() {
		onBothInboxes(t, test)
		return
	}
	t.Parallel()
	test(t, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
}

// onBothInboxes is for tests that run the built usher, which has no thorough run, and for what only SQL shows.
func onBothInboxes(t *testing.T, test func(t *testing.T, inbox string)) {
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		test(t, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, "USHER_WEBHOOK_INBOX="+pgtest.Schema(t))
	})
}

// inboxIn runs usher inbox against a running usher, in this process.
func inboxIn(t *testing.T, u *testkit.Usher, args ...string) (code int, out string) {
	t.Helper()
	code, stdout, stderr := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")}, append([]string{"inbox"}, args...)...)
	return code, stdout + stderr
}

// outcomes are the states of an inbox's webhooks, the oldest first, whatever their numbers.
func outcomes(t *testing.T, u *testkit.Usher) string {
	t.Helper()
	return regexp.MustCompile(`\d+ `).ReplaceAllString(states(t, u), "")
}

// Whether a webhook is to be delivered is decided when it is taken in. Without a receiver it is stored, for
// entitlements alone; but not behind one that waits: nothing older may ever reach a receiver after it.
func TestStored(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		down, rc := newReceiver(t, 503), newReceiver(t, 200)
		live := func(platform, url string) *testkit.Usher {
			u := run(t, []string{inbox, "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=" + platform, "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=" + url,
				"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json"})
			u.Ready(t)
			return u
		}
		send := func(u *testkit.Usher, tenant string, users int) {
			t.Helper()
			if status, decision, answer := testkit.Post(t, hooks(t, u), on("docs", tenant, users)); status != 200 || decision != "queued" {
				t.Fatalf("%d %s %s", status, decision, answer)
			}
		}
		u := live("docs", down.url)
		send(u, "acme", 1)
		u.End()
		u = live("other", rc.url)
		send(u, "acme", 2)
		send(u, "new", 3)
		if got := outcomes(t, u); got != "waiting, waiting, stored" {
			t.Errorf("without their receiver: %s", got)
		}
		for tenant, users := range map[string]int{"acme": 2, "new": 3} {
			if _, body := testkit.Get(t, u.URL(t, "entitlements")+"/v1/entitlements/"+tenant+"/users"); !strings.Contains(body, fmt.Sprintf(`"limit":%d,`, users)) {
				t.Errorf("%s: %s", tenant, body)
			}
		}
		u.End()
		u = live("docs", rc.url)
		testkit.Eventually(t, "what waited is delivered", func() bool { return outcomes(t, u) == "delivered, delivered, stored" })
		if rc.count() != 2 {
			t.Errorf("%d deliveries: %q", rc.count(), rc.bodies)
		}
	})
}

// A receiver that hangs for some tenants keeps the others waiting for no longer than it takes to see that.
func TestHealthyTenantsDoNotWait(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		release := make(chan struct{})
		var healthy testkit.Ledger
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), `"hangs-`) {
				select {
				case <-release:
				case <-r.Context().Done():
				}
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			healthy.ServeHTTP(w, r)
		}))
		t.Cleanup(srv.Close)
		u := run(t, gateAlone(srv.URL, inbox, "USHER_WEBHOOK_TIMEOUT=300ms", "USHER_WEBHOOK_INBOX_CONCURRENCY=4"))
		t.Cleanup(func() { close(release) })
		u.Ready(t)
		const bad, good = 12, 40
		for i := range bad {
			testkit.Post(t, hooks(t, u), testkit.Snapshot(fmt.Sprint("hangs-", i), 1))
		}
		for n := range 2 {
			for i := range good {
				testkit.Post(t, hooks(t, u), testkit.Snapshot(fmt.Sprint("t", i), n+1))
			}
			testkit.Eventually(t, "the healthy ones are delivered", func() bool {
				for i := range good {
					if healthy.Last(fmt.Sprint("t", i)) != n+1 {
						return false
					}
				}
				return true
			})
		}
		wantFigures(t, u, map[string]string{"usher_inbox_pending": fmt.Sprint(bad)})
	})
}

// check says whether the inbox can be reached and written, also one that a running usher has, and changes nothing.
func TestCheckOfInboxes(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		rc := newReceiver(t, 200)
		for _, when := range []string{"new", "in use", "left"} {
			var u *testkit.Usher
			if when == "in use" {
				u = run(t, gateAlone(rc.url, inbox))
				u.Ready(t)
			}
			if code, out, stderr := ended(t, gateAlone(rc.url, inbox), "check"); code != 0 || strings.Contains(out, "FAIL") || !strings.Contains(out, "inbox") {
				t.Errorf("%s: %d %s%s", when, code, out, stderr)
			}
			if u != nil {
				if status, _, answer := testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 1)); status != 200 {
					t.Errorf("afterwards: %d %s", status, answer)
				}
				u.End()
			}
		}
	})
	for _, inbox := range []string{"file:/nowhere/inbox.db", "postgres://usher:p4ssword@127.0.0.1:1/usher"} {
		code, out, stderr := ended(t, gateAlone(newReceiver(t, 200).url, "USHER_WEBHOOK_INBOX="+inbox), "check")
		if code != 1 || !strings.Contains(out, "FAIL") || strings.Contains(out+stderr, "p4ssword") {
			t.Errorf("%s: %d %s%s", inbox, code, out, stderr)
		}
	}
}

// Codes have at most 255 bytes, and no zero character. Others are 422, and recorded as invalid, without a tenant.
func TestLongCodesInTheInbox(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		w := newWorld(t)
		u := start(t, w.environ(inbox)).ready(t)
		for code, stored := range map[string]bool{
			"x": true, strings.Repeat("x", 255): true, "ü/%": true, `it's \"quoted\"`: true,
			strings.Repeat("x", 256): false, strings.Repeat("x", 1<<19): false, "a\\u0000b": false,
		} {
			body := strings.Replace(testkit.Snapshot("CODE", 5), "CODE", code, 1)
			for _, decision := range []string{"queued", "duplicate"} {
				status := 200
				if !stored {
					status, decision = 422, "rejected"
				}
				if r := u.send(body); r.status != status || r.header.Get("Usher-Decision") != decision {
					t.Errorf("a code of %d bytes: %d %.300s, want %s", len(code), r.status, r.body, decision)
				}
			}
		}
		if r := get(t, u.admin, "/readyz"); r.status != 200 {
			t.Errorf("unready: %s", r.body)
		}
		if r := u.send(testkit.Snapshot("acme", 5)); r.status != 200 {
			t.Errorf("a good one afterwards: %d %s", r.status, r.body)
		}
		testkit.Eventually(t, "delivered", func() bool { return len(w.receiver.Deliveries()) == 5 })
		if r := get(t, u.admin, "/api/webhooks?state=invalid"); strings.Count(string(r.body), `"state":"invalid"`) != 3 || strings.Contains(string(r.body), `"tenant":`) {
			t.Errorf("invalid: %.2000s", r.body)
		}
	})
}
