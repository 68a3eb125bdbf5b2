package page

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/admin/status"
	"usher/internal/sandbox"
	"usher/internal/testkit"
	"usher/internal/view"
)

func getJSON[T any](t *testing.T, url string) (v T) {
	t.Helper()
	status, body := get(t, url)
	if err := json.Unmarshal([]byte(body), &v); err != nil || status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	return v
}

// Without an inbox the page has the last decisions: what was forwarded, what was a duplicate, what was rejected
// and why.
func TestPagePassThrough(t *testing.T) {
	t.Parallel()
	w := startWatched(t, "USHER_WEBHOOK_INBOX=")
	for _, body := range []string{snapshot("acme", 5), snapshot("acme", 5), snapshot("acme", 6), `{"type":"TenantProvisioningChange","payload":{}}`} {
		post(t, w.gate, body)
	}
	url := w.admin
	_, list := get(t, url+"/webhooks")
	for _, want := range []string{"rejected</span>", "/payload/change is missing", "forwarded</span>", "duplicate</span>", "crm/acme"} {
		if !strings.Contains(list, want) {
			t.Errorf("no %q in\n%s", want, list)
		}
	}
	for _, page := range []string{"/", "/webhooks", "/webhooks/d1", "/webhooks/d4"} {
		if status, body := get(t, url+page); status != 200 || !strings.Contains(body, "</html>") {
			t.Errorf("%s: %d %s", page, status, body)
		}
	}
}

// What is wrong names the variable that somebody has to look at.
func TestStatusNamesTheVariable(t *testing.T) {
	t.Parallel()
	s := newService(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("wr0ng\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, s.Environ("USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_NAME=jobs", "USHER_PORTS_0_CLIENT_SECRET_FILE="+file,
		"USHER_PORTS_1_LISTEN=127.0.0.1:0", "USHER_PORTS_1_NAME=reports"))
	url := p.URL(t, "admin") + "/api/status"
	var now status.Status
	testkit.Eventually(t, "invalid", func() bool {
		now = getJSON[status.Status](t, url)
		return len(now.Troubles) == 1 && now.Ports[0].Token != nil && now.Ports[1].Error != ""
	})
	if what, do := now.Troubles[0].What, now.Troubles[0].Do; what != "Port jobs: token request rejected: invalid_client: every call fails" || !strings.Contains(do, "Check USHER_CLIENT_ID and USHER_PORTS_0_CLIENT_SECRET_FILE") {
		t.Errorf("%q %q", what, do)
	}
	if main, jobs, reports := now.Ports[0], now.Ports[1], now.Ports[2]; !strings.HasPrefix(main.State, "token valid for ") || jobs.Token != nil || reports.Shares != "main" || now.Gate != nil || now.Inbox != nil {
		t.Errorf("%+v", now)
	}
	wantCall(t, p.URL(t, "main"), 200, "accounts")
}

// A receiver that refuses two tenants and takes the others is not down: the page names the two, what holds
// them up and who waits behind it, however the last try went. When it is down, it is named.
func TestHeldUp(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	for _, tenant := range []string{"harbour-ltd", "pier-ltd"} {
		w.receiver.FailFor(tenant, sandbox.Fault{Status: http.StatusInternalServerError})
	}
	for users := range 3 {
		post(t, w.gate, of("docs", "harbour-ltd", users+1))
	}
	post(t, w.gate, of("docs", "pier-ltd", 1))
	var s status.Status
	banner := func(severity, what string) func() bool {
		return func() bool {
			s = getJSON[status.Status](t, w.admin+"/api/status")
			return len(s.Troubles) == 1 && s.Troubles[0].Severity == severity && strings.HasPrefix(s.Troubles[0].What, what)
		}
	}
	receiver := "The receiver " + getJSON[status.Status](t, w.admin+"/api/status").Gate.Receivers[0].Address + " "
	testkit.Eventually(t, "told whose are rejected", banner("warning", receiver+"does not take the webhooks of docs/harbour-ltd and docs/pier-ltd, and has taken no others since; the last try: 500 "))
	post(t, w.gate, of("docs", "acme", 1000))
	invalid := banner("warning", receiver+"takes webhooks, but not those of docs/harbour-ltd and docs/pier-ltd; the last answer: 500 ")
	testkit.Eventually(t, "told that others are fine", invalid)
	for _, last := range []string{"ok", "status"} { // whatever the last try was
		users := 1
		testkit.Eventually(t, "the last try was "+last, func() bool {
			if last == "ok" {
				post(t, w.gate, of("docs", "acme", users))
				users++
			}
			if !invalid() {
				t.Fatalf("another diagnosis: %+v", s.Troubles)
			}
			return s.Gate.Receivers[0].LastTry == last
		})
	}
	if r := s.Gate.Receivers[0]; r.Tone != "warn" || r.State != "takes webhooks, but not those of 2 tenants" || r.Waiting < 4 {
		t.Errorf("%+v", r)
	}
	held := s.Inbox.HeldUp
	if len(held) != 2 || held[0].Tenant != "harbour-ltd" || held[0].Webhook != "1" || held[0].Behind != 2 || held[0].Answer != "500 Internal Server Error" || held[0].Tries == 0 || held[0].Next.IsZero() {
		t.Errorf("%+v", held)
	}
	_, page := get(t, w.admin+"/")
	for _, want := range []string{`>docs/harbour-ltd</a> is held up by <a href="/webhooks/1">webhook 1</a> (500 Internal Server Error, `, "; 2 wait behind it", "takes webhooks, but not those of 2 tenants"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for path, want := range map[string]string{
		"/webhooks/1":                            "next try in ",
		"/webhooks/2":                            `<dt>held up by</dt><dd><a href="/webhooks/1">webhook 1</a> (500 `,
		"/tenant?platform=docs&code=harbour-ltd": `it waits behind webhook 1 (500 `,
	} {
		testkit.Eventually(t, path+" says "+want, func() bool { _, page := get(t, w.admin+path); return strings.Contains(page, want) })
	}
	w.receiver.Fail(sandbox.Fault{Status: http.StatusServiceUnavailable})
	for _, tenant := range []string{"acme", "acme-2", "acme-3"} {
		post(t, w.gate, of("docs", tenant, 100))
	}
	testkit.Eventually(t, "told that the receiver is down", banner("critical", receiver+"takes nothing: nothing is delivered, "))
	// Then nobody knows when one of its webhooks is tried next: usher tries one after the other
	// to see whether it is back.
	testkit.Eventually(t, "told what they wait for", func() bool {
		_, page := get(t, w.admin+"/webhooks?tenant=docs/acme&state=waiting")
		return strings.Contains(page, "next try when the receiver is back")
	})
}

// A tenant's page says what it may use now, since when and by which webhook, as a check is answered.
func TestTenantMayUse(t *testing.T) {
	t.Parallel()
	p := start(t, []string{
		"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ENTITLEMENTS_KEY=k3y-of-the-shop!", "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db"), "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	})
	p.Ready(t)
	gate, url := p.URL(t, "webhooks")+"/webhooks", p.URL(t, "admin")
	for _, users := range []int{5, 7} {
		post(t, gate, of("docs", "it's a/b; id", users))
	}
	query := "platform=docs&code=it%27s+a%2Fb%3B+id"
	tenant := getJSON[view.Tenant](t, url+"/api/tenant?"+query)
	may := tenant.MayUse
	if may == nil || !may.Known || may.ID != 2 || may.Webhook != tenant.Snapshots[0].UUID || may.AsOf.IsZero() || may.Features[0].Code != "users" || may.Features[0].Limit != 7 {
		t.Fatalf("%+v of %+v", may, tenant)
	}
	_, page := get(t, url+"/tenant?"+query)
	for _, want := range []string{"What it may use now", "by webhook 2.", may.Webhook} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	if strings.Contains(page, "has not taken") || strings.Contains(page, "k3y") {
		t.Errorf("the page complains of what is kept, or has the key:\n%s", page)
	}
	if status, body := get(t, url+"/tenant?platform=crm&code=nobody"); status != 404 {
		t.Errorf("%d %s", status, body)
	}
}
