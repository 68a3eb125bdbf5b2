//go:build unix

package e2e

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"usher/internal/testkit"
)

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
