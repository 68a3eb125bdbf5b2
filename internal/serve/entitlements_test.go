package serve_test

import (
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// entitled is the environment of a gate without a receiver, and with entitlements.
func entitled(t *testing.T, inbox string, extra ...string) []string {
	t.Helper()
	return append([]string{
		"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_INBOX=" + inbox, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	}, extra...)
}

// After usher has answered 200 to a webhook, it answers checks from it, also after a restart. It needs no
// receiver for that.
func TestEntitlements(t *testing.T) {
	t.Parallel()
	env := entitled(t, "file:"+filepath.Join(t.TempDir(), "inbox.db"))
	p := start(t, env)
	p.Ready(t)
	gate, port := p.URL(t, "webhooks")+"/webhooks", p.URL(t, "entitlements")
	want := func(path string, status int, part string) {
		t.Helper()
		if got, body := get(t, port+path); got != status || !strings.Contains(body, part) {
			t.Errorf("%s: %d %s, want %d with %s", path, got, body, status, part)
		}
	}
	want("/v1/check?tenant=acme&feature=users", 404, "TENANT_UNKNOWN")
	for _, users := range []int{5, 7, 5} {
		if status, decision, answer := post(t, gate, snapshot("acme", users)); status != 200 || decision != "queued" {
			t.Fatalf("%d %s %s", status, decision, answer)
		}
		want("/v1/check?tenant=acme&feature=users&quantity=6", map[int]int{5: 403, 7: 204}[users], "")
	}
	if _, decision, _ := post(t, gate, snapshot("acme", 5)); decision != "duplicate" {
		t.Errorf("a copy of what is stored is %s", decision)
	}
	if status, _, _ := post(t, gate, strings.Replace(snapshot("acme", 9), `"change"`, `"chance"`, 1)); status != 422 {
		t.Errorf("a bad webhook is answered %d", status)
	}
	want("/v1/entitlements/acme/users", 200, `"limit":5`)
	want("/v1/entitlements/acme/nothing", 200, `"enabled":false,"limit":0`)
	post(t, gate, of("docs", "acme", 9))
	want("/v1/entitlements/acme", 409, "AMBIGUOUS")
	want("/v1/entitlements/acme/users?platform=docs", 200, `"limit":9`)

	if _, list := get(t, p.URL(t, "admin")+"/api/webhooks"); strings.Count(list, `"state":"stored"`) != 4 {
		t.Errorf("what nobody takes is not stored: %s", list)
	}
	p.Stop()
	<-p.Ended
	p = start(t, env)
	p.Ready(t)
	port = p.URL(t, "entitlements")
	want("/v1/entitlements/acme/users?platform=crm", 200, `"limit":5`)
	want("/v1/entitlements/acme", 409, "AMBIGUOUS")
	want("/v1/entitlements/nobody", 404, "TENANT_UNKNOWN")
}

// usher delivers webhooks whose platform has a receiver, and stores the others. It does not deliver a stored one
// later, either.
func TestStoredBesideAReceiver(t *testing.T) {
	t.Parallel()
	crm := sandbox.NewReceiver()
	server := httptest.NewServer(crm)
	defer server.Close()
	env := entitled(t, "file:"+filepath.Join(t.TempDir(), "inbox.db"),
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+server.URL)
	p := start(t, env)
	p.Ready(t)
	gate := p.URL(t, "webhooks") + "/webhooks"
	post(t, gate, of("crm", "acme", 1))
	post(t, gate, of("docs", "acme", 2))
	testkit.Eventually(t, "delivered", func() bool { return len(crm.Deliveries()) == 1 })
	p.Stop()
	<-p.Ended
	p = start(t, append(env, "USHER_WEBHOOK_FORWARD_URL="+server.URL))
	p.Ready(t)
	post(t, p.URL(t, "webhooks")+"/webhooks", of("docs", "acme", 3))
	testkit.Eventually(t, "delivered", func() bool { return len(crm.Deliveries()) == 2 })
	if _, list := get(t, p.URL(t, "admin")+"/api/webhooks"); strings.Count(list, `"state":"stored"`) != 1 {
		t.Error(list)
	}
}
