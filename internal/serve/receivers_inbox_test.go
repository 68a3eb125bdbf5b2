//go:build unix

package serve_test

import (
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
	"usher/internal/testkit/pgtest"
)

// Three receivers, of which one hangs and one refuses: the third gets all of its webhooks
// meanwhile. Then usher is restarted with one platform given to another receiver. What waits
// goes to whoever takes its platform now, in order.
func TestReceiversWithAnInbox(t *testing.T) {
	for name, inbox := range map[string]string{
		"file":     "file:" + filepath.Join(t.TempDir(), "inbox.db"),
		"postgres": pgtest.Schema(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			receiversOfAnInbox(t, inbox)
		})
	}
}

func receiversOfAnInbox(t *testing.T, inbox string) {
	well, wellURL := testkit.NewLedger(t)
	refusing, refusingURL := testkit.NewLedger(t)
	refusing.SetDown(true)
	recovered := new(testkit.Ledger)
	var hangs atomic.Bool
	hanging := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the caller has gone
			<-r.Context().Done()
			return
		}
		recovered.ServeHTTP(w, r)
	}))
	defer hanging.Close()
	hangs.Store(true)

	// run starts usher with the platforms that the one that is well takes, and the one that refuses.
	run := func(ofWell, ofRefusing string) *testkit.Usher {
		env := []string{
			"USHER_WEBHOOK_INBOX=" + inbox, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
			"USHER_SHUTDOWN_GRACE=100ms", "USHER_WEBHOOK_TIMEOUT=1s", "USHER_WEBHOOK_INBOX_CONCURRENCY=2",
		}
		for n, receiver := range [][3]string{{"well", ofWell, wellURL}, {"refusing", ofRefusing, refusingURL}, {"hanging", "docs", hanging.URL}} {
			prefix := fmt.Sprintf("USHER_WEBHOOK_RECEIVERS_%d_", n)
			env = append(env, prefix+"NAME="+receiver[0], prefix+"PLATFORMS="+receiver[1], prefix+"FORWARD_URL="+receiver[2])
		}
		p := start(t, env)
		p.Ready(t)
		return p
	}
	p := run("crm", "mail,shop")
	const tenants, webhooks = 4, 5
	var want []int // of each tenant
	for n := 1; n <= webhooks; n++ {
		want = append(want, n)
		for i := range tenants {
			for _, platform := range []string{"docs", "mail", "shop", "crm"} {
				status, decision, answer := post(t, p.URL(t, "webhooks")+"/webhooks", of(platform, fmt.Sprint(platform, i), n))
				if status != 200 || decision != "queued" {
					t.Fatalf("%s%d %d: %d %s %s", platform, i, n, status, decision, answer)
				}
			}
		}
	}
	has := func(l *testkit.Ledger, platform string) func() bool {
		return func() bool {
			for i := range tenants {
				if !slices.Equal(l.All(fmt.Sprint(platform, i)), want) {
					return false
				}
			}
			return true
		}
	}
	testkit.Eventually(t, "delivered to the receiver that is well", has(well, "crm"))
	if n := recovered.Count("docs0") + refusing.Count("mail0") + refusing.Count("shop0"); n > 0 {
		t.Fatalf("%d were taken by receivers that are not well", n)
	}

	p.Stop()
	<-p.Ended
	p = run("crm,mail", "shop")
	testkit.Eventually(t, "mail delivered to the receiver that takes it now", has(well, "mail"))
	hangs.Store(false)
	refusing.SetDown(false)
	testkit.Eventually(t, "docs delivered when its receiver answers", has(recovered, "docs"))
	testkit.Eventually(t, "shop delivered when its receiver is back", has(refusing, "shop"))
	if refusing.Count("mail0") > 0 {
		t.Error("the receiver that has lost a platform got a webhook of it")
	}
	testkit.Eventually(t, "nothing waits", func() bool {
		_, status := get(t, p.URL(t, "admin")+"/metrics")
		return strings.Contains(status, "\nusher_inbox_pending 0\n")
	})
	if status, decision, answer := post(t, p.URL(t, "webhooks")+"/webhooks", of("mail", "mail0", webhooks)); decision != "duplicate" {
		t.Errorf("what the new receiver accepted: %d %s %s", status, decision, answer)
	}
	if status, decision, answer := post(t, p.URL(t, "webhooks")+"/webhooks", of("other", "other0", 1)); status != 422 {
		t.Errorf("a platform that nobody takes: %d %s %s", status, decision, answer)
	}
}
