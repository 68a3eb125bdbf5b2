//go:build unix

package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/testkit"
)

// Bodies up to USHER_REPLAY_LIMIT are sent again after a 401; of others the caller gets it.
func TestReplaySettings(t *testing.T) {
	t.Parallel()
	padded := func(size int) string {
		head, tail := `{"query":"{ accounts(limit: 1) { id name } }","variables":{"pad":"`, `"}}`
		return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	}
	for setting, statuses := range map[string]map[int]int{
		"USHER_REPLAY_LIMIT=2KiB": {2048: 200, 2049: 401},
		"USHER_KEY=":              {1 << 20: 200, 1<<20 + 1: 401}, // the defaults
	} {
		s := testkit.NewService(t)
		u := run(t, s.Environ(setting))
		u.Ready(t)
		for size, want := range statuses {
			s.Revoke()
			if r := asked(t, "POST", u.URL(t, "main")+"/graphql", padded(size), "Content-Type", "application/json"); r.status != want {
				t.Errorf("%s: %d bytes: %d %s, want %d", setting, size, r.status, r.body, want)
			}
		}
	}
}

// Each check of the gate's senders, and what dedup remembers, as it is set.
func TestGateSettings(t *testing.T) {
	t.Parallel()
	body := testkit.Snapshot("acme", 5)
	long, short := hmac.New(sha512.New, []byte("k")), hmac.New(sha256.New, []byte("k"))
	long.Write([]byte(body))
	short.Write([]byte(body))
	rc := newReceiver(t, 200)
	sha := run(t, gateAlone(rc.url, "USHER_WEBHOOK_SIGNING_KEY=k", "USHER_WEBHOOK_SIGNATURE_ALGORITHM=sha512"))
	for signature, want := range map[string]int{hex.EncodeToString(long.Sum(nil)): 200, hex.EncodeToString(short.Sum(nil)): 401} {
		if status, _, answer := testkit.Post(t, hooks(t, sha), body, "X-Bunny-Signature", signature); status != want {
			t.Errorf("%s: %d %s", signature, status, answer)
		}
	}
	for setting, want := range map[string]string{
		"USHER_WEBHOOK_DEDUP_SIZE=1":     "forwarded", // of two tenants the second alone is remembered
		"USHER_WEBHOOK_DEDUP_SIZE=2":     "duplicate",
		"USHER_WEBHOOK_DEDUP_WINDOW=1ns": "forwarded",
		"USHER_WEBHOOK_DEDUP_WINDOW=1h":  "duplicate",
	} {
		u := run(t, gateAlone(rc.url, setting))
		for _, tenant := range []string{"one", "two"} {
			testkit.Post(t, hooks(t, u), testkit.Snapshot(tenant, 1))
		}
		if _, decision, answer := testkit.Post(t, hooks(t, u), testkit.Snapshot("one", 1)); decision != want {
			t.Errorf("%s: %s %s, want %s", setting, decision, answer, want)
		}
	}
}

// What a further receiver has of its own, and what it inherits.
func TestReceiversOwnSettings(t *testing.T) {
	t.Parallel()
	const ofAll, ofOne, newOfOne = "b2YgYWxs", "b2Ygb25l", "bmV3IG9mIG9uZQ=="
	rc := newReceiver(t, 200)
	hangs := hanging(t)
	u := run(t, gateAlone(hangs, "USHER_WEBHOOK_FORWARD_SIGNING_KEY=whsec_"+ofAll, "USHER_WEBHOOK_TIMEOUT=1h", "USHER_WEBHOOK_TRIES=1",
		// while it is rotated
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=own", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+rc.url, "USHER_WEBHOOK_RECEIVERS_0_FORWARD_SIGNING_KEY=whsec_"+ofOne+", whsec_"+newOfOne,
		"USHER_WEBHOOK_RECEIVERS_1_PLATFORMS=inherits", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL="+rc.url,
		"USHER_WEBHOOK_RECEIVERS_2_PLATFORMS=slow", "USHER_WEBHOOK_RECEIVERS_2_FORWARD_URL="+hangs, "USHER_WEBHOOK_RECEIVERS_2_TIMEOUT=20ms"))
	for platform, secrets := range map[string][]string{"own": {ofOne, newOfOne}, "inherits": {ofAll}} {
		if status, _, answer := testkit.Post(t, hooks(t, u), on(platform, "acme", 5)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		r, body := rc.last(t)
		var want []string // one for each secret
		for _, secret := range secrets {
			key, _ := base64.StdEncoding.DecodeString(secret)
			mac := hmac.New(sha256.New, key)
			fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
			want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		}
		if got := r.Header.Values("webhook-signature"); !slices.Equal(got, []string{strings.Join(want, " ")}) {
			t.Errorf("%s: signature %q, want %q", platform, got, want)
		}
	}
	if status, decision, answer := testkit.Post(t, hooks(t, u), on("slow", "acme", 5)); status != 504 || decision != "failed" {
		t.Errorf("%d %s %s", status, decision, answer)
	}
}

// How many deliveries are under way at once: so many for each receiver.
func TestInboxConcurrency(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	slow := func(n *atomic.Int32) string {
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			n.Add(1)
			<-release
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	var main, own atomic.Int32
	u := run(t, gateAlone(slow(&main), "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_WEBHOOK_INBOX_CONCURRENCY=3", "USHER_WEBHOOK_TIMEOUT=5m",
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=own", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+slow(&own), "USHER_WEBHOOK_RECEIVERS_0_CONCURRENCY=2"))
	t.Cleanup(func() { close(release) }) // before usher ends, which waits for them
	for i := range 10 {
		for _, platform := range []string{"own", "crm"} {
			testkit.Post(t, hooks(t, u), on(platform, fmt.Sprint("t", i), 1))
		}
	}
	testkit.Eventually(t, "as many as may", func() bool { return main.Load() >= 3 && own.Load() >= 2 })
	if main.Load() != 3 || own.Load() != 2 {
		t.Errorf("%d and %d at once, want 3 and 2", main.Load(), own.Load())
	}
}

// When a webhook of the inbox is parked, and what a newer one supersedes.
func TestInboxSettings(t *testing.T) {
	t.Parallel()
	file := func() string { return "USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db") }
	for _, tc := range []struct {
		name, want string
		status     int
		accepted   bool // the receiver has accepted another tenant's webhook
		env        []string
	}{
		{"by tries", "1 delivered, 2 parked", 500, true, []string{"USHER_WEBHOOK_INBOX_TRIES=1"}},
		{"no try counts while nobody is accepted", "1 waiting", 500, false, []string{"USHER_WEBHOOK_INBOX_TRIES=1"}},
		{"down is no try", "1 delivered, 2 waiting", 503, true, []string{"USHER_WEBHOOK_INBOX_TRIES=1"}},
		{"by age", "1 parked", 503, false, []string{"USHER_WEBHOOK_INBOX_TRIES=1", "USHER_WEBHOOK_INBOX_MAX_AGE=1ns"}},
		{"by age only after so many tries", "1 waiting", 503, false, []string{"USHER_WEBHOOK_INBOX_TRIES=20", "USHER_WEBHOOK_INBOX_MAX_AGE=1ns"}},
	} {
		receiver := newReceiver(t, tc.status)
		u := run(t, gateAlone(receiver.url, append(tc.env, file())...))
		take := func(tenant string) {
			t.Helper()
			if status, decision, answer := testkit.Post(t, hooks(t, u), testkit.Snapshot(tenant, 1)); status != 200 || decision != "queued" {
				t.Fatalf("%s: %d %s %s", tc.name, status, decision, answer)
			}
		}
		if tc.accepted {
			receiver.set(200)
			take("other")
			testkit.Eventually(t, tc.name+": another tenant is accepted", func() bool { return states(t, u) == "1 delivered" })
			receiver.set(tc.status)
		}
		take("acme")
		wantFigures(t, u, map[string]string{`usher_webhook_tries_total{receiver="main",result="status"}`: "positive"})
		testkit.Eventually(t, tc.name+": "+tc.want, func() bool { return states(t, u) == tc.want })
	}
}

// A full inbox: 503, and when to come again; deliveries go on, and make room.
func TestInboxMaxBytes(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 503)
	u := run(t, gateAlone(rc.url, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_WEBHOOK_INBOX_MAX_BYTES=2KiB"))
	send := func(n int) reply {
		return asked(t, "POST", hooks(t, u), testkit.Snapshot(fmt.Sprint("t", n), 1), "Content-Type", "application/json")
	}
	admin := "USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")
	full := func() bool {
		_, out, _ := ended(t, []string{admin}, "status")
		return strings.Contains(out, "The inbox has no room for a webhook of ")
	}
	n := 0
	// What is taken in during a count may count twice until the next count, which the status makes: then there is room
	// for one more.
	testkit.Eventually(t, "the status says so", func() bool { // whatever share of the limit is used
		r := reply{status: 200}
		for ; n < 100 && r.status == 200; n++ {
			r = send(n)
		}
		if n == 1 || r.status != 503 || r.header.Get("Retry-After") == "" || r.header.Get("Usher-Decision") != "failed" {
			t.Fatalf("after %d: %d %v %s", n, r.status, r.header, r.body)
		}
		return full()
	})
	large := odd("invalid", 1) + strings.Repeat(" ", 1200) // than what little may be left
	if r := asked(t, "POST", hooks(t, u), large, "Content-Type", "application/json"); r.status != 422 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	accept := u.URL(t, "admin") + "/api/webhooks/" + invalidOf(t, u, "invalid")[0].ID + "/accept"
	if r := asked(t, "POST", accept, ""); r.status != 503 || !strings.Contains(r.body, "full") {
		t.Errorf("accepted into a full inbox: %d %s", r.status, r.body)
	}
	if _, metrics := testkit.Get(t, u.URL(t, "admin")+"/metrics"); !strings.Contains(metrics, "\nusher_inbox_limit_bytes 2048\n") {
		t.Error("the limit is not in the metrics")
	}
	rc.set(200)
	testkit.Eventually(t, "no longer full", func() bool { return !full() })
	testkit.Eventually(t, "room again", func() bool { return send(100).status == 200 })
	testkit.Eventually(t, "all delivered", func() bool {
		_, metrics := testkit.Get(t, u.URL(t, "admin")+"/metrics")
		return strings.Contains(metrics, "\nusher_inbox_pending 0\n")
	})
}

// A receiver that is down fills only its part of the room, and a tenant a part of that: the 503 and the
// status say whose webhooks have none, and everybody else's are taken in and delivered.
func TestInboxMaxBytesOfOne(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	onBothInboxes(t, func(t *testing.T, inbox string) {
		down, alpha := newReceiver(t, 503), newReceiver(t, 200)
		u := startProcess(t, gateAlone(alpha.url, inbox, "USHER_WEBHOOK_INBOX_MAX_BYTES=64KiB",
			"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=b", "USHER_WEBHOOK_RECEIVERS_0_NAME=beta", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+down.url))
		u.Ready(t)
		admin := "USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")
		send := func(tenant string, n int) reply {
			return asked(t, "POST", hooks(t, u), on("b", tenant, n), "Content-Type", "application/json")
		}
		fill := func(whose string, tenant func(n int) string, says func() bool) {
			t.Helper()
			n := 0
			// As in TestInboxMaxBytes, there may be room for one more after a count.
			testkit.Eventually(t, "the status says so: "+whose, func() bool {
				r := reply{status: 200}
				for ; n < 300 && r.status == 200; n++ {
					r = send(tenant(n), n)
				}
				if n < 4 || r.status != 503 || r.header.Get("Retry-After") == "" || !strings.Contains(r.body, "the inbox is full for the "+whose) {
					t.Fatalf("after %d: %d %s", n, r.status, r.body)
				}
				_, out, _ := ended(t, []string{admin}, "status")
				who := strings.TrimSuffix(strings.ReplaceAll(whose, "\\", ""), ":") // the answer is JSON
				return strings.Contains(out, "The inbox has no room for a webhook of ") && strings.Contains(out, " for the "+who+", which has ") && says()
			})
		}
		fill("tenant b/acme:", func(int) string { return "acme" }, func() bool { return true })
		fill(`receiver \"beta\":`, func(n int) string { return fmt.Sprint("t", n) }, func() bool {
			_, page := testkit.Get(t, u.URL(t, "admin")+"/")
			return strings.Contains(page, "has no room left in the inbox") // the receiver's row
		})
		for n := range 20 {
			if status, _, answer := testkit.Post(t, hooks(t, u), on("a", fmt.Sprint("t", n), 1)); status != 200 {
				t.Fatalf("another receiver's: %d %s", status, answer)
			}
		}
		down.set(200)
		testkit.Eventually(t, "room again", func() bool { return send("acme", 1000).status == 200 })
		testkit.Eventually(t, "all is well", func() bool {
			_, out, _ := ended(t, []string{admin}, "status")
			return !strings.Contains(out, "The inbox has no room")
		})
	})
}

// What a tenant may use is kept with any inbox, though the port is off: it is there when the port
// is on, however the webhook fared.
func TestEntitlementsFromBefore(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 422) // parks
	env := gateAlone(rc.url, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	u := run(t, env)
	testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 5))
	testkit.Eventually(t, "parked", func() bool { return states(t, u) == "1 parked" })
	// The command asks through the admin port, which does not need the other one.
	if code, out, _ := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")}, "entitlements", "acme", "users"); code != 0 {
		t.Errorf("usher entitlements: %d %s", code, out)
	}
	u.End()
	u = run(t, append(env, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0"))
	u.Ready(t)
	if status, body := testkit.Get(t, u.URL(t, "entitlements")+"/v1/entitlements/acme/users"); status != 200 || !strings.Contains(body, `"limit":5`) {
		t.Errorf("%d %s", status, body)
	}
}
