package page

import (
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"usher/internal/admin"
	"usher/internal/testkit"
)

// A tenant's page says what it may use now, since when and by which webhook, as a check is answered;
// and the line that asks for it does.
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
	tenant := getJSON[admin.Tenant](t, url+"/api/tenant?"+query)
	may := tenant.MayUse
	if may == nil || !may.Known || may.ID != 2 || may.Webhook != tenant.Snapshots[0].Webhook || may.AsOf.IsZero() || may.Features[0].Code != "users" || may.Features[0].Limit != 7 {
		t.Fatalf("%+v of %+v", may, tenant)
	}
	if len(may.Ask) != 2 || !strings.HasPrefix(may.Ask[0], `curl -H "X-Usher-Key: $USHER_ENTITLEMENTS_KEY" 'http://127.0.0.1:`) {
		t.Fatalf("%q", may.Ask)
	}
	for i, want := range []string{`"limit":7`, ""} {
		asked := regexp.MustCompile(`'(http[^']*)'$`).FindStringSubmatch(may.Ask[i])[1]
		req, err := http.NewRequest("GET", asked, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Usher-Key", "k3y-of-the-shop!")
		resp, err := http.DefaultClient.Do(req)
		resp, body := testkit.Whole(t, resp, err)
		if resp.StatusCode >= 300 || !strings.Contains(body, want) {
			t.Errorf("%s: %s %s", asked, resp.Status, body)
		}
	}
	_, page := get(t, url+"/tenant?"+query)
	for _, want := range []string{"What it may use now", `<a href="/webhooks/2">webhook 2</a>`, "curl -H &#34;X-Usher-Key: $USHER_ENTITLEMENTS_KEY&#34;", may.Webhook} {
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

	// Without the port usher's own command asks.
	w := startWatched(t)
	w.send(t, "acme", 5)
	may = getJSON[admin.Tenant](t, w.admin+"/api/tenant?platform=crm&code=acme").MayUse
	if want := []string{"usher entitlements crm/acme", "usher entitlements crm/acme users"}; may == nil || !slices.Equal(may.Ask, want) {
		t.Errorf("%+v, want %q", may, want)
	}
}
