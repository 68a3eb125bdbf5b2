package sandbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const allFields = `code name platform { code name } features { code name value quantity } subscriptions { id state start_date end_date ` +
	`trial_start_date trial_end_date plan { code name } price_list { code name } product { code name } features { code name value quantity } }`

// listTenants asks the service for a page of tenants.
func listTenants(t *testing.T, s *Sandbox, fields, args string) (tenants []json.RawMessage, fault string) {
	t.Helper()
	tok := post(s, "/oauth/token", formType, "grant_type=client_credentials&scope=standard:read&client_id=demo&client_secret=demo-secret")
	w := ask(s.Billing, decode[tokenResponse](t, tok).AccessToken, fmt.Sprintf(`{"query":"{ tenants%s { %s } }"}`, args, fields))
	got := decode[struct {
		Data   struct{ Tenants []json.RawMessage }
		Errors []struct {
			Message string
			Path    any
		}
	}](t, w)
	if len(got.Errors) > 0 {
		return nil, got.Errors[0].Message
	}
	return got.Data.Tenants, ""
}

// The service knows each tenant by its last change, whether its webhook was sent, failed or was lost.
func TestTenants(t *testing.T) {
	s := opened(t, "127.0.0.1:0")
	send := func(body string, want string) {
		t.Helper()
		if w := post(s, "/sandbox/send", "", body); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", body, w.Code, w.Body, want)
		}
	}
	wantList := func(what, want string) {
		t.Helper()
		got, fault := listTenants(t, s, "code platform { code } features { code quantity }", "")
		var lines []string
		for _, tenant := range got {
			var v Tenant
			if err := json.Unmarshal(tenant, &v); err != nil {
				t.Error(err)
			}
			lines = append(lines, strings.TrimPrefix(v.String(), " "))
		}
		if list := strings.Join(lines, "; "); list != want || fault != "" {
			t.Errorf("%s: %s %s, want %s", what, list, fault, want)
		}
	}
	wantList("before any change", "")
	send(`{"tenant":"acme","features":{"users":25,"sso":null}}`, `"status":200`)
	send(`{"tenant":"acme","platform":"docs","features":{"seats":4294967296}}`, `"status":200`)
	wantList("sent", "(crm/acme): sso, users ≤ 25; (docs/acme): seats ≤ 4294967296")
	received := len(s.Receiver.Deliveries())
	send(`{"tenant":"acme","features":{"users":30},"lost":true}`, `{"status":0,"decision":"","replies":[],"lost":true}`)
	send(`{"tenant":"new","lost":true}`, `"lost":true`)
	wantList("lost", "(crm/acme): users ≤ 30; (docs/acme): seats ≤ 4294967296; (crm/new): nothing")
	if n := len(s.Receiver.Deliveries()); n != received {
		t.Errorf("the receiver got %d webhooks that were lost", n-received)
	}
	if err := s.Fail(Failure{Part: "receiver", Status: 500}); err != nil {
		t.Fatal(err)
	}
	send(`{"tenant":"acme","features":{}}`, `"status":500`)
	wantList("failed", "(crm/acme): nothing; (docs/acme): seats ≤ 4294967296; (crm/new): nothing")
	for _, raw := range []string{"\xff", `{}`, `{"type":"Other","payload":{"tenant":{"code":"x"}}}`, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":7}}}`} {
		post(s, "/sandbox/send?raw", "", raw)
	}
	post(s, "/sandbox/send?raw", "", `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"raw"},"change":{}}}`)
	got, fault := listTenants(t, s, allFields, "(offset: 3)")
	if want := `[{"code":"raw","name":null,"platform":null,"features":null,"subscriptions":null}]`; fmt.Sprintf("%s", got) != want || fault != "" {
		t.Errorf("a body of one's own: %s %s, want %s", got, fault, want)
	}
	for args, want := range map[string]int{"": 4, "(limit: 2)": 2, "(limit: 2, offset: 3)": 1, "(offset: 2147483647, limit: 1000)": 0, "(limit: 0)": 0} {
		if got, fault := listTenants(t, s, "code", args); len(got) != want || fault != "" {
			t.Errorf("tenants%s: %s %s, want %d", args, got, fault, want)
		}
	}
	for _, args := range []string{"(limit: -1)", "(offset: -1)", "(limit: 1001)"} {
		if _, fault := listTenants(t, s, "code", args); !strings.Contains(fault, "limit must be from 0 to 1000") {
			t.Errorf("tenants%s: %q", args, fault)
		}
	}
}

// A tenant has the fields of its last webhook. What that lacks is null.
func TestTenantsAsInWebhooks(t *testing.T) {
	s := opened(t, "127.0.0.1:0")
	last := make(map[string]map[string]any)
	for range 40 {
		var e struct {
			Payload struct {
				Tenant map[string]any
				Change map[string]any
			}
		}
		if err := json.Unmarshal(s.Sender.Next(t.Context()).Body, &e); err != nil {
			t.Fatal(err)
		}
		tenant := e.Payload.Tenant
		delete(tenant["platform"].(map[string]any), "id")
		last[fmt.Sprint(tenant["platform"], tenant["code"])] = map[string]any{"code": tenant["code"], "name": tenant["name"], "platform": tenant["platform"],
			"features": e.Payload.Change["features"], "subscriptions": e.Payload.Change["subscriptions"]}
	}
	got, fault := listTenants(t, s, allFields, "")
	if len(got) != len(last) || len(got) < 5 {
		t.Fatalf("%d tenants, %d had webhooks: %s", len(got), len(last), fault)
	}
	for _, text := range got {
		var tenant map[string]any
		if err := json.Unmarshal(text, &tenant); err != nil {
			t.Fatal(err)
		}
		want := last[fmt.Sprint(tenant["platform"], tenant["code"])]
		if g, w := withoutNulls(tenant), withoutNulls(want); string(encode(g)) != string(encode(w)) {
			t.Errorf("tenant  %s\nwebhook %s", encode(g), encode(w))
		}
	}
}

func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if member == nil {
				delete(v, name)
			} else {
				v[name] = withoutNulls(member)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return v
}

// A webhook that was lost is not sent later, and nor is the one before it sent again: it is no longer true.
func TestNothingOldAfterALostChange(t *testing.T) {
	s, rc := newPair(3)
	for range 3 {
		mustChange(t, s)
	}
	s.lose(State{Tenant: "acme"}.Webhook())
	e := s.Next(t.Context())
	if strings.Contains(e.Summary, "again") || e.N != 4 || len(rc.Deliveries()) != 4 {
		t.Errorf("%+v", e)
	}
}

// The service forgets the oldest tenants rather than take ever more memory.
func TestTenantsAreBounded(t *testing.T) {
	const limit = 4 << 10
	b := NewBilling()
	b.book.limit = limit
	body := func(code string, size int) []byte {
		return []byte(fmt.Sprintf(`{"type":%q,"payload":{"tenant":{"code":%q,"name":%q},"change":{}}}`, EventType, code, strings.Repeat("x", size)))
	}
	for _, code := range []string{"a", "b", "c", "a", "a", "a", "a"} {
		b.book.put(body(code, limit/4))
	}
	codes := func() (all string) {
		for _, tenant := range b.book.page(maxPage, 0) {
			all += tenant.Code
		}
		return all
	}
	if codes() != "abc" {
		t.Errorf("a tenant that changes is one tenant: %s", codes())
	}
	b.book.put(body("d", limit/4))
	if codes() != "bcd" || b.book.bytes > limit || len(b.book.known) != 3 {
		t.Errorf("%s, %d bytes, %d known", codes(), b.book.bytes, len(b.book.known))
	}
	b.book.put(body("a", limit))
	if codes() != "" || b.book.bytes != 0 || len(b.book.known) != 0 {
		t.Errorf("%s, %d bytes, %d known", codes(), b.book.bytes, len(b.book.known))
	}
}
