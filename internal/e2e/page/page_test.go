package page

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/admin"
	"usher/internal/admin/status"
	"usher/internal/testkit"
)

func getJSON[T any](t *testing.T, url string) (v T) {
	t.Helper()
	status, body := get(t, url)
	if err := json.Unmarshal([]byte(body), &v); err != nil || status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	return v
}

// Without an inbox the page has the last decisions: what was forwarded with what it
// changed, what was a duplicate, what was turned away and why.
func TestPagePassThrough(t *testing.T) {
	w := startWatched(t, "USHER_WEBHOOK_INBOX=")
	contact := strings.Replace(snapshot("acme", 5), `"name":"T"`, `"name":"T","account":{"id":1,"contacts":[{"id":1,"email":"ada@customer.example"}]}`, 1)
	for _, body := range []string{contact, contact, snapshot("acme", 6), `{"type":"TenantProvisioningChange","payload":{}}`} {
		post(t, w.gate, body)
	}
	url := w.admin
	list := getJSON[admin.WebhookList](t, url+"/api/webhooks")
	want := []struct{ decision, part string }{
		{"rejected", "/payload/change is missing"}, {"forwarded", "users 5 → 6"}, {"duplicate", ""}, {"forwarded", "+ users (5)"},
	}
	if len(list.Webhooks) != len(want) {
		t.Fatalf("%+v", list)
	}
	for i, w := range list.Webhooks {
		if said := w.Why + strings.Join(w.Changes, ", "); w.Decision != want[i].decision || !strings.Contains(said, want[i].part) {
			t.Errorf("%d: %+v, want %v", i, w, want[i])
		}
	}
	first := getJSON[admin.WebhookDetail](t, url+"/api/webhooks/"+list.Webhooks[3].ID)
	if strings.Contains(string(first.Payload), "ada") || !strings.Contains(string(first.Payload), `"account":{"id":1}`) {
		t.Errorf("kept: %s", first.Payload)
	}
	rejected := getJSON[admin.WebhookDetail](t, url+"/api/webhooks/"+list.Webhooks[0].ID)
	if len(rejected.Faults) == 0 || string(rejected.Payload) != `{"type":"TenantProvisioningChange","payload":{}}` || rejected.Status != 422 {
		t.Errorf("%+v", rejected)
	}
	tenant := getJSON[admin.Tenant](t, url+"/api/tenant?platform=crm&code=acme")
	if len(tenant.Snapshots) != 2 || tenant.Rights == nil || tenant.Rights.Features[0].Limit != 6 {
		t.Errorf("%+v", tenant)
	}
	for _, page := range []string{"/", "/webhooks", "/webhooks/" + list.Webhooks[1].ID, "/tenant?platform=crm&code=acme"} {
		if status, body := get(t, url+page); status != 200 || !strings.Contains(body, "</html>") {
			t.Errorf("%s: %d %s", page, status, body)
		}
	}
}

// What is wrong names the variable that somebody has to look at.
func TestStatusNamesTheVariable(t *testing.T) {
	s := newService(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("wr0ng\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, s.Environ("USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_NAME=jobs", "USHER_PORTS_0_CLIENT_SECRET_FILE="+file,
		"USHER_PORTS_1_LISTEN=127.0.0.1:0", "USHER_PORTS_1_NAME=reports"))
	url := p.URL(t, "admin") + "/api/status"
	var now status.Status
	testkit.Eventually(t, "refused", func() bool {
		now = getJSON[status.Status](t, url)
		return len(now.Wrong) == 1 && now.Ports[0].Token != nil && now.Ports[1].Error != ""
	})
	if what, do := now.Wrong[0].What, now.Wrong[0].Do; what != "Port jobs: token endpoint refuses: invalid_client" || !strings.Contains(do, "Check USHER_PORTS_0_CLIENT_SECRET_FILE and USHER_CLIENT_ID") {
		t.Errorf("%q %q", what, do)
	}
	if main, jobs, reports := now.Ports[0], now.Ports[1], now.Ports[2]; !strings.HasPrefix(main.State, "token valid for ") || jobs.Token != nil || reports.Shares != "main" || now.Gate != nil || now.Inbox != nil {
		t.Errorf("%+v", now)
	}
	wantCall(t, p.URL(t, "main"), 200, "accounts")
	if minutes := getJSON[status.Status](t, url).Ports[0].Minutes; len(minutes) != 60 || minutes[59].Calls+minutes[58].Calls != 1 {
		t.Errorf("%d minutes: %+v", len(minutes), minutes[58:])
	}
}
