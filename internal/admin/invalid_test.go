package admin

import (
	"html"

	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"

	"usher/internal/content"
	"usher/internal/testkit/inboxtest"
	"usher/webhookgate"
)

// invalid422 returns a webhook of the right sender whose content is invalid.
func invalid422(body string) *webhookgate.Invalid {
	return &webhookgate.Invalid{Status: 422, Reason: "schema", From: "192.0.2.1", Faults: []content.Fault{{Path: "/payload/tenant/name", Message: "is missing"}},
		Webhook: webhookgate.Webhook{ID: "r", Type: content.TenantProvisioningChange, Lane: webhookgate.LaneName{Platform: "eu", Tenant: "acme"}, Body: []byte(body),
			Digest: sha256.Sum256([]byte(body)), Header: http.Header{"Content-Type": {"application/json"}}}}
}

// An invalid webhook shows on every page that it concerns, and does not count as what the tenant has. It can
// be accepted or discarded, but never sent again.
func TestInvalidOnThePages(t *testing.T) {
	const less = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme","platform":{"code":"eu"}},"change":{"features":[{"code":"users","quantity":5}]}}}`
	more := strings.Replace(less, "}]", `},{"code":"sso"}]`, 1)
	b := inboxtest.Open(t)
	h := entitled(b)
	see := func(target string, want []string, not ...string) {
		t.Helper()
		status, page := look(h, target, want...)
		for _, want := range want {
			if status != 200 || !strings.Contains(page, want) {
				t.Errorf("%s: %d, no %q in\n%s", target, status, want, page)
			}
		}
		for _, not := range not {
			if strings.Contains(page, not) {
				t.Errorf("%s: %q in\n%s", target, not, page)
			}
		}
	}
	act := func(target, form string, want int) {
		t.Helper()
		if status, page := ask(h, "POST", target, form, "Accept", "text/html", "Content-Type", "application/x-www-form-urlencoded"); status != want {
			t.Errorf("%s: %d\n%s", target, status, page)
		}
	}
	b.Take("eu", "acme", less) // 1
	see("/actions", []string{"No actions in the last 90 days"})
	for range 2 {
		b.RecordInvalid(context.Background(), invalid422(more)) // 2
	}
	see("/", []string{"usher rejected 1 webhook of eu/acme", "/payload/tenant/name is missing", `<a href="/webhooks/2">Show</a>`, "would have added sso"}, "All is well")
	see("/webhooks", []string{`<span class="badge bad">invalid</span>`, "the sender got 422", "would have added sso"})
	see("/tenant?platform=eu&code=acme", []string{"usher rejected webhook", "The receiver has it", "<td>users</td>", "Accept…", "Discard…"}, "<td>sso</td>", "has not taken this")
	see("/webhooks/2", []string{"What it would have changed", "would have added sso", "192.0.2.1", "/payload/tenant/name</td><td>is missing", "Accept…", "Discard…"}, "Send again", "Tried")
	see("/webhooks?tenant=eu/acme&ask=redeliver", []string{"Redeliver 1 webhook?", "gets webhook 1 now"}, "left out")
	see("/webhooks/2?ask=discard", []string{"usher no longer reports it"})
	act("/redeliver", "id=2", 409)
	act("/discard", "id=2", 303)
	act("/redeliver", "id=2", 409)
	see("/webhooks/2", []string{"would have added sso"}, "Send again", "Accept…")
	see("/", []string{"All is well"})
	b.RecordInvalid(context.Background(), invalid422(more)) // its number is not the next: the copy has used one
	see("/webhooks?state=invalid", []string{`id="w-4"`, "Discard all of these…"}, "Send all")
	act("/accept", "id=4", 303)
	see("/webhooks/4", []string{"taken in as 5"}, "Send again", "would have")
	see("/webhooks?state=replaced", []string{`id="w-4"`}, "all of these")
	see("/tenant?platform=eu&code=acme", []string{"taken in as 5"}, "usher rejected webhook")
	see("/actions", []string{"<td>accept</td>", "<td>discard</td>", `<a href="/actions" aria-current="page">`})
	// Without an inbox it is among the gate's last decisions.
	ring := NewDecisions()
	cfg := port(nil)
	cfg.Decisions, cfg.Gate, cfg.Receivers = ring, gate, receiversOf(nil)
	h = New(cfg)
	invalid := invalid422(more)
	ring.Add(webhookgate.Outcome{Decision: "rejected", Status: 422, Faults: invalid.Faults, Invalid: invalid, Why: "it is bad"})
	see("/webhooks", []string{"eu/acme", "rejected", "it is bad"}, "/tenant?")
	see("/webhooks/d1", []string{"/payload/tenant/name</td><td>is missing"}, "Accept…", "Discard…")
	if status, _ := ask(h, "GET", "/webhooks/d2", ""); status != 404 {
		t.Errorf("what was never decided: %d", status)
	}
}

// A webhook that does not say whose it is does not count as that of a tenant.
func TestInvalidOfAnUnknownTenant(t *testing.T) {
	b := inboxtest.Open(t)
	b.RecordInvalid(context.Background(), invalid422(five))
	b.RecordInvalid(context.Background(), &webhookgate.Invalid{Status: 400, Reason: "json", Faults: []content.Fault{{Message: "is not JSON"}}, Webhook: webhookgate.Webhook{ID: "x", Body: []byte("{")}})
	if _, page := look(entitled(b), "/"); !strings.Contains(page, "usher rejected 2 webhooks of an unknown tenant and eu/acme") {
		t.Error(page)
	}
}

// The page offers to accept an invalid webhook only if that can be done, and else says why not; and so
// does the page that asks.
func TestAcceptIsOfferedWhereItWorks(t *testing.T) {
	const whole = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme","platform":{"code":"eu"}},"change":{"features":[]}}}`
	for name, tc := range map[string]struct {
		change func(*webhookgate.Invalid)
		why    string // empty: it can be accepted
	}{
		"a missing name":          {func(*webhookgate.Invalid) {}, ""},
		"not JSON":                {func(r *webhookgate.Invalid) { r.Body, r.Lane = []byte("{"), webhookgate.LaneName{} }, "the body is not JSON"},
		"not certain whose":       {func(r *webhookgate.Invalid) { r.Body, r.Lane = []byte(`{"type":"x"}`), webhookgate.LaneName{} }, "its tenant cannot be read for certain"},
		"cut":                     {func(r *webhookgate.Invalid) { r.Cut = true }, "only the beginning of its body is stored"},
		"the body says otherwise": {func(r *webhookgate.Invalid) { r.Lane.Platform = "us" }, "its body names another tenant"},
	} {
		b := inboxtest.Open(t)
		h := entitled(b)
		r := invalid422(whole)
		tc.change(r)
		r.Digest = sha256.Sum256(r.Body)
		if b.RecordInvalid(context.Background(), r) == 0 {
			t.Fatal(name)
		}
		pages := []string{"/webhooks/1"}
		if r.Lane.Tenant != "" {
			pages = append(pages, "/tenant?code=acme&platform="+r.Lane.Platform)
		}
		for _, target := range pages {
			_, page := look(h, target)
			if strings.Contains(page, "Accept…") != (tc.why == "") || strings.Contains(page, "be accepted: "+html.EscapeString(tc.why)) != (tc.why != "") || !strings.Contains(page, "Discard…") {
				t.Errorf("%s, %s:\n%s", name, target, page)
			}
		}
		want := http.StatusOK
		if tc.why != "" {
			want = http.StatusConflict
		}
		if status, page := look(h, "/webhooks/1?ask=accept"); status != want || !strings.Contains(page, tc.why) {
			t.Errorf("%s: the page that asks: %d\n%s", name, status, page)
		}
	}
}
