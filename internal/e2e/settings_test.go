//go:build unix

package e2e

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/testkit"
)

// Settings reach the part that they are for. What is made of them is shown in the parts' own packages.

// The keys, and the names that are answered, of every port.
func TestKeysAndHosts(t *testing.T) {
	t.Parallel()
	u := run(t, testkit.NewService(t).Environ("USHER_ALLOWED_HOSTS=usher.test", fileInbox(t.TempDir()), "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_KEY=0f-main", "USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_1_LISTEN=127.0.0.1:0", "USHER_PORTS_1_KEY=0f-port-1",
		"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ENTITLEMENTS_KEY=0f-entitlements", "USHER_ADMIN_TOKEN=0f-admin"))
	u.Ready(t)
	for _, port := range []struct {
		listener, method, path, body, key string
		status                            int // of who is let in
	}{
		{"main", "POST", "/graphql", testkit.Query, "0f-main", 200},
		{"0", "POST", "/graphql", testkit.Query, "0f-main", 200},
		{"1", "POST", "/graphql", testkit.Query, "0f-port-1", 200},
		{"entitlements", "GET", "/v1/entitlements/nobody", "", "0f-entitlements", 404},
		{"admin", "GET", "/metrics", "", "0f-admin", 200},
	} {
		for key, hosts := range map[string]map[string]int{
			port.key: {"usher.test": port.status, "10.0.0.7": port.status, "evil.test": 421},
			"wr0ng":  {"usher.test": 401},
		} {
			for host, want := range hosts {
				r := asked(t, port.method, u.URL(t, port.listener)+port.path, port.body, "Host", host, "Authorization", "Bearer "+key, "Content-Type", "application/json")
				if r.status != want {
					t.Errorf("%s at %s with %s: %d %s, want %d", port.listener, host, key, r.status, r.body, want)
				}
			}
		}
	}
	// A gate on loopback that checks nothing answers these names, too.
	for host, want := range map[string]int{"usher.test": 200, "evil.test": 421} {
		if r := asked(t, "POST", hooks(t, u), testkit.Snapshot("acme", 5), "Host", host); r.status != want {
			t.Errorf("the gate at %s: %d %s", host, r.status, r.body)
		}
	}
}

// Every secret can be in a file, without the newline at its end, and is read again when the
// content changes. (The client's secret and the gate's token have tests of their own.)
func TestSecretsInFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, secret string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	whsec := func(s string) string { return "whsec_" + base64.StdEncoding.EncodeToString([]byte(s)) }
	rc := newReceiver(t, 200)
	u := run(t, testkit.NewService(t).Environ(
		"USHER_KEY_FILE="+write("key", "first-of-all-keys"), "USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_KEY_FILE="+write("port", "first-of-a-port"),
		"USHER_ADMIN_TOKEN_FILE="+write("admin", "first-of-admin"),
		"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ENTITLEMENTS_KEY_FILE="+write("rights", "first-of-rights"),
		"USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL="+rc.url, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(dir, "inbox.db"),
		"USHER_WEBHOOK_SIGNING_KEY_FILE="+write("hmac", "first-of-hmac"), "USHER_WEBHOOK_FORWARD_SIGNING_KEY_FILE="+write("sign", whsec("first-of-sign")),
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=own", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+rc.url,
		"USHER_WEBHOOK_RECEIVERS_0_FORWARD_SIGNING_KEY_FILE="+write("own", whsec("first-of-own"))))
	u.Ready(t)
	sent := 0
	// delivered sends a webhook, and says whether it came signed with this secret.
	delivered := func(platform, signingKey, secret string) bool {
		sent++
		body := on(platform, "acme", sent)
		mac := hmac.New(sha1.New, []byte(signingKey))
		mac.Write([]byte(body))
		before := rc.count()
		if status, _, answer := testkit.Post(t, hooks(t, u), body, "X-Bunny-Signature", hex.EncodeToString(mac.Sum(nil))); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		testkit.Eventually(t, "delivered", func() bool { return rc.count() > before })
		r, body := rc.last(t)
		mac = hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
		return r.Header.Get("webhook-signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	signed := func(s string) string {
		mac := hmac.New(sha1.New, []byte(s))
		mac.Write([]byte("{}"))
		return hex.EncodeToString(mac.Sum(nil))
	}
	for _, turn := range []string{"first", "second"} {
		if turn == "second" {
			write("key", "second-of-all-keys")
			write("port", "second-of-a-port")
			write("admin", "second-of-admin")
			write("rights", "second-of-rights")
			write("hmac", "second-of-hmac")
			write("sign", whsec("second-of-sign"))
			write("own", whsec("second-of-own"))
		}
		for what, call := range map[string]func() int{
			"the key": func() int {
				return asked(t, "POST", u.URL(t, "main")+"/graphql", testkit.Query, "X-Usher-Key", turn+"-of-all-keys", "Content-Type", "application/json").status
			},
			"the key of a port": func() int {
				return asked(t, "POST", u.URL(t, "0")+"/graphql", testkit.Query, "X-Usher-Key", turn+"-of-a-port", "Content-Type", "application/json").status
			},
			"the admin token": func() int {
				return asked(t, "GET", u.URL(t, "admin")+"/metrics", "", "Authorization", "Bearer "+turn+"-of-admin").status
			},
			"the key of entitlements": func() int { // known: the tenant is not
				return asked(t, "GET", u.URL(t, "entitlements")+"/v1/entitlements/nobody", "", "X-Usher-Key", turn+"-of-rights").status - 204
			},
			"the secret of signatures": func() int { // it fits: the webhook does not
				return asked(t, "POST", hooks(t, u), "{}", "X-Bunny-Signature", signed(turn+"-of-hmac")).status - 222
			},
		} {
			testkit.Eventually(t, turn+": "+what, func() bool { return call() == 200 })
		}
		testkit.Eventually(t, turn+": the signature", func() bool { return delivered("crm", turn+"-of-hmac", turn+"-of-sign") })
		testkit.Eventually(t, turn+": the signature of a receiver", func() bool { return delivered("own", turn+"-of-hmac", turn+"-of-own") })
	}
	for _, old := range []reply{
		asked(t, "POST", u.URL(t, "main")+"/graphql", testkit.Query, "X-Usher-Key", "first-of-all-keys"),
		asked(t, "POST", u.URL(t, "0")+"/graphql", testkit.Query, "X-Usher-Key", "first-of-a-port"),
		asked(t, "GET", u.URL(t, "admin")+"/metrics", "", "Authorization", "Bearer first-of-admin"),
		asked(t, "GET", u.URL(t, "entitlements")+"/v1/entitlements/nobody", "", "X-Usher-Key", "first-of-rights"),
		asked(t, "POST", hooks(t, u), "{}", "X-Bunny-Signature", signed("first-of-hmac")),
	} {
		if old.status != 401 {
			t.Errorf("one of yesterday's: %d %s", old.status, old.body)
		}
	}
}

// usher is ready when every local port has had a token, not when the first has.
func TestReadyWithEveryPort(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	u := run(t, s.Environ("USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_NAME=second", "USHER_PORTS_0_CLIENT_SECRET=wr0ng"))
	admin := u.URL(t, "admin")
	testkit.Eventually(t, "the first port has a token", func() bool { resp, _ := testkit.Call(t, u.URL(t, "main")); return resp.StatusCode == 200 })
	for _, path := range []string{"/readyz", "/readyz/outbound"} {
		if status, body := testkit.Get(t, admin+path); status != 503 || !strings.Contains(body, "port second has had no token yet") || strings.Contains(body, "port main") {
			t.Errorf("%s: %d %s", path, status, body)
		}
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

// A webhook is parked once it has failed for long enough beside others that are accepted.
func TestParkAfter(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "ill") {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(srv.Close)
	u := run(t, gateAlone(srv.URL, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_WEBHOOK_INBOX_PARK_AFTER=1s"))
	testkit.Post(t, hooks(t, u), testkit.Snapshot("ill", 1))
	users := 0
	testkit.Eventually(t, "parked beside others", func() bool {
		users++
		testkit.Post(t, hooks(t, u), testkit.Snapshot("well", users))
		return strings.Contains(states(t, u), "1 parked")
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

// Somebody buys: the service asks by CheckoutValidation, which names no platform, and the buyer reads the answer.
func TestCheckout(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		const sorry = "[\"This change cannot be made at the moment. Please try again in a few minutes.\"]\n"
		crm, docs := newReceiver(t, 200), newReceiver(t, 422)
		docs.say(`["Not enough seats."]`)
		u := run(t, []string{"USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", inbox, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0",
			"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=" + crm.url,
			"USHER_WEBHOOK_RECEIVERS_1_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL=" + docs.url})
		u.Ready(t)
		for _, body := range []string{on("crm", "acme", 1), on("docs", "bolt", 1)} {
			if status, _, answer := testkit.Post(t, hooks(t, u), body); status != 200 {
				t.Fatalf("%d %s", status, answer)
			}
		}
		checkout := func(tenant string) string {
			return strings.Replace(`{"type":"CheckoutValidation","payload":{"tenant":{"id":1,"code":"?"},"change":{"features":[]}}}`, "?", tenant, 1)
		}
		for _, tc := range []struct {
			body     string
			status   int
			decision string
			answer   string
		}{
			{checkout("acme"), 200, "forwarded", ""},
			{checkout("bolt"), 422, "forwarded", `["Not enough seats."]`},
			{checkout("nobody"), 422, "rejected", sorry},
			{checkout("acme")[:40], 400, "rejected", sorry},
		} {
			status, decision, answer := testkit.Post(t, hooks(t, u), tc.body)
			if status != tc.status || decision != tc.decision || answer != tc.answer {
				t.Errorf("%s: %d %s %s", tc.body, status, decision, answer)
			}
		}
	})
}
