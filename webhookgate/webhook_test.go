package webhookgate

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestLanes(t *testing.T) {
	tenant := func(platform, code string) string {
		return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q,"platform":{"code":%q}},"change":{}}}`, code, platform)
	}
	tests := []struct {
		body string
		want Lane
	}{
		{documented, Lane{Platform: "cloud", Tenant: "acme-prod"}},
		{snapshot("acme", "A"), Lane{Tenant: "acme"}},
		{tenant("a/b", "c"), Lane{Platform: "a/b", Tenant: "c"}},
		{tenant("a", "b/c"), Lane{Platform: "a", Tenant: "b/c"}},
		{`{"type":"Other","payload":{"tenant":{"code":"acme"}}}`, Lane{Tenant: "acme"}},
		{`{"type":"Other","payload":{"Tenant":{"Code":"acme"}}}`, Lane{Type: "Other"}},
		{`{"type":"Other","payload":[]}`, Lane{Type: "Other"}},
		{`{"type":"Other"}`, Lane{Type: "Other"}},
		{`{"type":"Other","payload":{"tenant":{"code":5}}}`, Lane{Type: "Other"}},
	}
	for _, tt := range tests {
		value, no := parseBody([]byte(tt.body))
		if no != nil {
			t.Fatal(no.Error)
		}
		if got := laneOf(stringAt(value, "type"), value); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.body, got, tt.want)
		}
	}
}

func TestOnlySnapshotsAreDeduplicated(t *testing.T) {
	receiver := new(counting)
	g := newGate(t, func(c *Config) {
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
	for _, body := range []string{snapshot("acme", "A"), `{"type":"Reset","payload":{"tenant":{"code":"acme"}}}`, snapshot("acme", "A")} {
		if got := post(t, g, body); got.Decision != forwarded {
			t.Errorf("%s: %v", body, got)
		}
	}
}

func TestIDs(t *testing.T) {
	v7 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	at := time.UnixMilli(0x0123456789ab)
	seen := make(map[string]bool)
	for range 1000 {
		id := newID(at)
		if !v7.MatchString(id) || !strings.HasPrefix(id, "01234567-89ab-7") || seen[id] {
			t.Fatalf("id %s", id)
		}
		seen[id] = true
	}
}
