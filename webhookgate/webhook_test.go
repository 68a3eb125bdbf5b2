package webhookgate

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
)

func laneIn(t *testing.T, body string) LaneName {
	t.Helper()
	g := newGate(t, func(c *setup) { c.Types, c.Schema = []string{"*"}, []byte(`{}`) })
	in := &arrival{r: request(body)}
	if no := g.parse(in, []byte(body)); no != nil {
		t.Fatal(no)
	}
	return in.Webhook.Lane
}

func TestLanes(t *testing.T) {
	tenant := func(platform, code string) string {
		return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q,"platform":{"code":%q}},"change":{}}}`, code, platform)
	}
	tests := []struct {
		body string
		want LaneName
	}{
		{documented, LaneName{Platform: "cloud", Tenant: "acme-prod"}},
		{snapshotOf("acme", "A"), LaneName{Tenant: "acme"}},
		{tenant("a/b", "c"), LaneName{Platform: "a/b", Tenant: "c"}},
		{tenant("a", "b/c"), LaneName{Platform: "a", Tenant: "b/c"}},
		{`{"type":"Other","payload":{"tenant":{"code":"acme"}}}`, LaneName{Tenant: "acme"}},
		{`{"type":"Other","payload":{"Tenant":{"Code":"acme"}}}`, LaneName{Type: "Other"}},
		{`{"type":"Other","payload":[]}`, LaneName{Type: "Other"}},
		{`{"type":"Other"}`, LaneName{Type: "Other"}},
		{`{"type":"Other","payload":{"tenant":{"code":5}}}`, LaneName{Tenant: "5"}},
		{`{"type":"Other","payload":{"tenant":{"code":"5"}}}`, LaneName{Tenant: "5"}},
		{`{"type":"Other","payload":{"tenant":{"code":7,"platform":{"code":8}}}}`, LaneName{Platform: "8", Tenant: "7"}},
		{`{"type":"Other","payload":{"tenant":{"code":7.0,"platform":{"code":-1e2}}}}`, LaneName{Platform: "-1e2", Tenant: "7.0"}},
	}
	for _, tt := range tests {
		if got := laneIn(t, tt.body); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.body, got, tt.want)
		}
	}
}

// An event goes by its tenant, or else by its type. An inbox has no lane for one that has neither.
func TestNeitherTenantNorType(t *testing.T) {
	for body, want := range map[string]int{
		`{"type":"","payload":{}}`: 422, `{"type":""}`: 422, `{"payload":7}`: 422, `[]`: 422, `{"type":"","payload":{"tenant":{"code":""}}}`: 422,
		`{"type":"","payload":{"tenant":{"code":"acme"}}}`: 200, `{"type":" "}`: 200, `{"type":"Other"}`: 200,
	} {
		var lanes []LaneName
		g := newGate(t, func(c *setup) {
			c.Types, c.Schema = []string{"*"}, []byte(`true`)
			c.Store = func(_ context.Context, w *Webhook) (string, error) { lanes = append(lanes, w.Lane); return "", nil }
		})
		if rec := ask(g, body); rec.Code != want || rec.Code == 422 && !strings.Contains(rec.Body.String(), `"/type"`) || slices.Contains(lanes, LaneName{}) {
			t.Errorf("%s: %d %s, kept in %v", body, rec.Code, rec.Body, lanes)
		}
	}
}

func TestOnlySnapshotsAreDeduplicated(t *testing.T) {
	receiver := new(counting)
	g := newGate(t, func(c *setup) {
		c.Transport, c.Types = receiver, []string{"*"}
		c.Schema = []byte(`{"type":"object"}`)
	})
	for _, body := range []string{
		`{"type":"TenantProvisioningChange","payload":{"tenant":{},"change":{}}}`, // whose?
		`{"type":"InvoiceReminder","payload":{"tenant":{"code":"acme"}}}`,         // maybe the second reminder
		`{"payload":1}`,
	} {
		for range 2 {
			if got := post(t, g, body); got.Decision != forwarded {
				t.Errorf("%s: %v", body, got)
			}
		}
	}
	// Such a webhook may change what the tenant has, so the memory is emptied.
	for _, body := range []string{snapshotOf("acme", "A"), `{"type":"Reset","payload":{"tenant":{"code":"acme"}}}`, snapshotOf("acme", "A")} {
		if got := post(t, g, body); got.Decision != forwarded {
			t.Errorf("%s: %v", body, got)
		}
	}
}

func TestIDs(t *testing.T) {
	v7 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2040, 1, 2, 3, 4, 5, 6e6, time.UTC)))
		seen := make(map[string]bool)
		for range 1000 {
			id := NewID()
			if !v7.MatchString(id) || !strings.HasPrefix(id, "020257cd-088e-7") || seen[id] {
				t.Fatalf("id %s", id)
			}
			seen[id] = true
		}
	})
}

// A code that is read as none would make one tenant of two. A schema of the user's own may allow
// numbers, and nothing else.
func TestCodesOfOtherTypes(t *testing.T) {
	for code, ok := range map[string]bool{
		`7`: true, `"7"`: true, `null`: true, `-1.5e3`: true, `true`: false, `false`: false, `[]`: false, `["a"]`: false, `{}`: false, `{"code":"a"}`: false,
	} {
		for path, tenant := range map[string]string{
			"/payload/tenant/code":          `{"code":` + code + `}`,
			"/payload/tenant/platform/code": `{"code":"acme","platform":{"code":` + code + `}}`,
		} {
			for name, change := range map[string]func(*setup){
				"a schema that allows all": func(c *setup) { c.Schema = []byte(`{}`) },
				"another type":             func(c *setup) { c.Types = []string{"*"} },
			} {
				typ := "Other"
				if name == "a schema that allows all" {
					typ = content.TenantProvisioningChange
				}
				rec := ask(newGate(t, change), `{"type":"`+typ+`","payload":{"tenant":`+tenant+`}}`)
				if ok && rec.Code != 200 || !ok && (rec.Code != 422 || !strings.Contains(rec.Body.String(), `"`+path+`"`)) {
					t.Errorf("%s, %s %s: %d %s", name, path, code, rec.Code, rec.Body)
				}
			}
		}
	}
	g := newGate(t, func(c *setup) { c.Schema = []byte(`{}`) })
	for _, platform := range []string{`"crm"`, `7`, `[{"code":"crm"}]`} {
		got := post(t, g, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme","platform":`+platform+`}}}`)
		if got.Code != 422 || got.Faults[0].Path != "/payload/tenant/platform" {
			t.Errorf("platform %s: %v", platform, got)
		}
	}
}
