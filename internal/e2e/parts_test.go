//go:build unix

package e2e

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// The gate and entitlements are ushers of their own on one PostgreSQL inbox, as the Helm chart runs them. The
// one without a gate knows no receivers, and says nothing about them. An outage of the database takes the
// gate out of its load balancer, and not the answers that are held in memory.
func TestPartsApart(t *testing.T) {
	t.Parallel()
	database := pgtest.Schema(t)
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	wire := pgtest.Cut(t, address.Host)
	inbox := "USHER_WEBHOOK_INBOX=" + wire.Through(database)
	gate := run(t, gateAlone(newReceiver(t, 503).url, inbox))
	reader := run(t, []string{inbox, "USHER_WEBHOOK_LISTEN=off", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json"})
	gate.Ready(t)
	reader.Ready(t)
	if _, decision, answer := testkit.Post(t, hooks(t, gate), on("crm", "acme", 5)); decision != "queued" {
		t.Fatalf("%s %s", decision, answer)
	}
	check := func() (int, string) {
		resp, err := http.Get(reader.URL(t, "entitlements") + "/v1/check?tenant=acme&feature=users")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Usher-Stale")
	}
	testkit.Eventually(t, "known", func() bool { status, _ := check(); return status == 204 })
	wantFigures(t, gate, map[string]string{`usher_inbox_pending`: "1", `usher_inbox_receiver_pending{receiver="main"}`: "1", `usher_ready{part="gate"}`: "1"})
	wantFigures(t, reader, map[string]string{`usher_inbox_pending`: "1", `usher_ready{part="entitlements"}`: "1"})
	for name := range figures(t, reader) {
		if strings.Contains(name, "receiver") || strings.Contains(name, `part="gate"`) {
			t.Errorf("without a gate there is %s", name)
		}
	}

	wire.Refuse()
	wantFigures(t, gate, map[string]string{`usher_ready{part="gate"}`: "0"})
	wantFigures(t, reader, map[string]string{`usher_ready{part="entitlements"}`: "1"})
	if status, stale := check(); status != 204 || stale == "" {
		t.Errorf("%d, stale for %q", status, stale)
	}
	if status, body := testkit.Get(t, reader.URL(t, "admin")+"/readyz/entitlements"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}
