package webhookgate

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"usher/webhookgate/content"
)

func laneIn(t *testing.T, body string) Lane {
	t.Helper()
	value, fault := content.Parse([]byte(body))
	if fault != nil {
		t.Fatal(fault)
	}
	return laneOf(content.StringAt(value, "type"), value)
}

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
		if got := laneIn(t, tt.body); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.body, got, tt.want)
		}
	}
}

// A platform that is null is none: its tenants have the lane that they have without it.
func TestNullDoesNotChangeTheLane(t *testing.T) {
	for body, want := range map[string]Lane{
		`{"type":"T","payload":{"tenant":{"code":"a"},"change":{}}}`:                          {Tenant: "a"},
		`{"type":"T","payload":{"tenant":{"code":"a","platform":null},"change":{}}}`:          {Tenant: "a"},
		`{"type":"T","payload":{"tenant":{"code":"a","platform":{"code":null}},"change":{}}}`: {Tenant: "a"},
		`{"type":"T","payload":{"tenant":{"code":"a","platform":{"code":""}},"change":{}}}`:   {Tenant: "a"},
		`{"type":"T","payload":{"tenant":{"code":null}}}`:                                     {Type: "T"},
		`{"type":"T","payload":{"tenant":null}}`:                                              {Type: "T"},
		`{"type":"T","payload":null}`:                                                         {Type: "T"},
	} {
		if got := laneIn(t, body); got != want {
			t.Errorf("%s: %+v, want %+v", body, got, want)
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
