//go:build unix

package e2e

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
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

// As the service signs: the HMAC-SHA1 of the body, in hex.
func serviceSignature(key, body string) string {
	mac := hmac.New(sha1.New, []byte(key))
	io.WriteString(mac, body)
	return hex.EncodeToString(mac.Sum(nil))
}

// A receiver that checked the service's signature and token before there was an usher goes on as it is, in pass-through
// and with an inbox, also while a secret rotates, and for what usher makes itself.
func TestReceiversOwnChecksGoOn(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		for _, box := range []string{"USHER_WEBHOOK_INBOX=", inbox} {
			token := atomic.Value{}
			token.Store("first-token")
			var good, bad atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Header.Get("X-Bunny-Signature") != serviceSignature("k2", string(body)) || r.Header.Get("Authorization") != "Bearer "+token.Load().(string) {
					bad.Add(1)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				good.Add(1)
			}))
			defer srv.Close()
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte("first-token"), 0o600); err != nil {
				t.Fatal(err)
			}
			u := run(t, gateAlone(srv.URL, box, "USHER_WEBHOOK_SIGNING_KEY=k2,k1", "USHER_WEBHOOK_TOKEN_FILE="+file, "USHER_WEBHOOK_TRIES=1"))
			u.Ready(t)
			send := func(token string, users int) int {
				body := testkit.Snapshot("acme", users)
				status, _, _ := testkit.Post(t, hooks(t, u), body, "X-Bunny-Signature", serviceSignature("k2", body), "Authorization", "Bearer "+token)
				return status
			}
			if status := send("first-token", 1); status != 200 {
				t.Fatalf("%d", status)
			}
			testkit.Eventually(t, "the first", func() bool { return good.Load() == 1 })
			token.Store("second-token") // the receiver goes first: what waits in an inbox comes when usher knows it, too
			if status := send("first-token", 2); status != map[bool]int{true: 502, false: 200}[box == "USHER_WEBHOOK_INBOX="] {
				t.Errorf("%d while usher has the old token", status)
			}
			if err := os.WriteFile(file, []byte("second-token,first-token"), 0o600); err != nil {
				t.Fatal(err)
			}
			users := 2
			testkit.Eventually(t, "the second", func() bool { users++; return send("second-token", users) == 200 && good.Load() > 1 })
			if bad.Load() == 0 {
				t.Error("the receiver checks nothing")
			}
		}
	})
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
