package admin

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox"
	"usher/webhookgate"
)

func outcome(tenant, decision, body string) webhookgate.Outcome {
	return webhookgate.Outcome{
		At: time.Unix(1, 0), Status: 200, Decision: decision,
		Webhook: &webhookgate.Webhook{
			ID: "id-" + tenant, Type: "TenantProvisioningChange", Lane: webhookgate.LaneName{Platform: "crm", Tenant: tenant},
			Snapshot: true, Body: []byte(body), Header: http.Header{"Content-Type": {"application/json"}},
		},
	}
}

func seqs(entries []*decision) string {
	var s []string
	for _, e := range entries {
		s = append(s, fmt.Sprint(e.seq))
	}
	return strings.Join(s, " ")
}

// What is invalid has its tenant and its faults, and counts until a later snapshot of the tenant was accepted.
func TestInvalidDecision(t *testing.T) {
	j := NewDecisions()
	invalid := func(tenant string) webhookgate.Outcome {
		o := outcome(tenant, "rejected", `{"n":2}`)
		o.Status, o.Invalid, o.Webhook = 422, &webhookgate.Invalid{Webhook: *o.Webhook, Faults: []content.Fault{{Message: "is bad"}}}, nil
		return o
	}
	counts := func(want string) {
		t.Helper()
		if n, of := j.Invalid(); fmt.Sprint(n, of.Tenants) != want {
			t.Errorf("%d of %q are invalid, want %s", n, of.Tenants, want)
		}
	}
	j.Add(outcome("acme", "forwarded", `{"n":1}`))
	j.Add(invalid("acme"))
	j.Add(invalid("acme"))
	j.Add(outcome("other", "forwarded", `{"n":4}`))
	if e := j.get(2); e.Tenant != "acme" || len(e.Faults) != 1 {
		t.Errorf("%+v", e)
	}
	counts("2 [crm/acme]")
	j.Add(outcome("acme", "forwarded", `{"n":3}`))
	counts("0 []")
}

func TestDecisions(t *testing.T) {
	j := NewDecisions()
	j.Add(outcome("acme", "forwarded", `{"n":1}`))
	j.Add(webhookgate.Outcome{Decision: "rejected", Status: 401, Why: "no secret", From: netip.MustParseAddr("192.0.2.7")})
	j.Add(outcome("other", "forwarded", `{"n":2}`))
	duplicate := outcome("acme", "duplicate", `{"n":1}`)
	duplicate.DuplicateOf = "id-acme"
	j.Add(duplicate)
	j.Add(outcome("acme", "failed", `{"n":"Müller","contacts":["ada@example.com"]}`))

	for _, tc := range []struct {
		filter inbox.Filter
		want   string
	}{
		{inbox.Filter{Limit: 100}, "5 4 3 2 1"},
		{inbox.Filter{Limit: 2}, "5 4"},
		{inbox.Filter{Limit: 2, Before: 4}, "3 2"},
		{inbox.Filter{Limit: 9, Tenant: "acme"}, "5 4 1"},
		{inbox.Filter{Limit: 9, State: "forwarded"}, "3 1"},
		{inbox.Filter{Limit: 9, Before: 1}, ""},
	} {
		if got := seqs(j.list(tc.filter)); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.filter, got, tc.want)
		}
	}
	if e := j.get(4); e.Original != "id-acme" {
		t.Errorf("duplicate: %+v", e)
	}
	if e := j.get(2); e == nil || e.Why != "no secret" {
		t.Errorf("%+v", e)
	}
	if e := j.get(6); e != nil {
		t.Errorf("%+v", e)
	}
}

// Requests without the secret do not push out decisions about those that had it.
func TestDecisionsAreBounded(t *testing.T) {
	j := NewDecisions()
	j.Add(outcome("acme", "forwarded", `{"n":1}`))
	for range 3 * maxDecisions {
		j.Add(webhookgate.Outcome{Decision: "rejected"})
	}
	if n := len(j.list(inbox.Filter{Limit: 1e6})); n != maxDecisions+1 {
		t.Fatalf("%d entries", n)
	}
	for i := range 2*maxDecisions + 1 {
		j.Add(outcome(fmt.Sprint("t", i), "forwarded", `{"n":1}`))
	}
	entries := j.list(inbox.Filter{Limit: 1e6, State: "forwarded"})
	if len(entries) != maxDecisions || entries[maxDecisions-1].Tenant != fmt.Sprint("t", maxDecisions+1) {
		t.Errorf("%d, the last is %s", len(entries), entries[len(entries)-1].Tenant)
	}
	large := strings.Repeat("x", 10*maxText)
	o := outcome(strings.Repeat("ä", maxText), "forwarded", `{}`)
	o.Why, o.Faults = large, slices.Repeat([]content.Fault{{Path: large, Message: large}}, 1000)
	j.Add(o)
	if e := j.list(inbox.Filter{Limit: 1})[0]; len(e.Tenant)+len(e.Why)+len(e.Faults[0].Path)+len(e.Faults[0].Message) > 5*maxText || len(e.Faults) != maxFaults || !strings.HasSuffix(e.Tenant, "ä…") {
		t.Errorf("kept: %+v", e)
	}
}
