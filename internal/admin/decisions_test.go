package admin

import (
	"encoding/json"
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

// before returns the numbers of what Decisions.before returns.
func before(d *Decisions, seq int64) (all string) {
	taken, last := d.before(d.get(seq))
	for i, e := range []*decision{taken, last} {
		if i > 0 {
			all += " "
		}
		if e == nil {
			all += "-"
		} else {
			all += fmt.Sprint(e.seq)
		}
	}
	return all
}

func seqs(entries []*decision) string {
	var s []string
	for _, e := range entries {
		s = append(s, fmt.Sprint(e.seq))
	}
	return strings.Join(s, " ")
}

func TestDecisions(t *testing.T) {
	j := NewDecisions(true)
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
		{inbox.Filter{Limit: 9, Search: "müll"}, "5"},
		{inbox.Filter{Limit: 9, Search: "192.0"}, "2"},
		{inbox.Filter{Limit: 9, Search: "ID-ACME", State: "failed"}, "5"},
		{inbox.Filter{Limit: 9, Search: "nobody"}, ""},
		{inbox.Filter{Limit: 9, Search: "ada@"}, ""}, // contacts can't be searched, either
		{inbox.Filter{Search: "d4"}, "4"},
		{inbox.Filter{}, "5 4 3 2 1"},
	} {
		if got := seqs(j.list(tc.filter)); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.filter, got, tc.want)
		}
	}
	if got := before(j, 5); got != "1 1" || string(j.get(1).payload()) != `{"n":1}` {
		t.Error(got)
	}
	if e := j.get(5); string(e.payload()) != `{"n":"Müller"}` {
		t.Errorf("%s", e.payload())
	}
	if e := j.get(4); e.payload() != nil || before(j, 4) != "- -" || e.Original != "id-acme" {
		t.Errorf("duplicate: %+v", e)
	}
	if e := j.get(2); e == nil || e.Why != "no secret" {
		t.Errorf("%+v", e)
	}
	// The receiver did not take the one that failed, so the next one is compared with the one before that.
	j.Add(outcome("acme", "forwarded", `{"n":3}`))
	if got := before(j, 6); got != "1 5" {
		t.Error(got)
	}
	if e := j.get(7); e != nil || e.payload() != nil {
		t.Errorf("%+v", e)
	}
}

func TestDecisionsBesideAnInbox(t *testing.T) {
	j := NewDecisions(false)
	stored := outcome("acme", "queued", `{}`)
	stored.Stored = true
	j.Add(stored)
	j.Add(outcome("acme", "duplicate", `{}`))
	entries := j.list(inbox.Filter{Limit: 9})
	if len(entries) != 1 || entries[0].Decision != "duplicate" || entries[0].payload() != nil || entries[0].sent != nil {
		t.Errorf("%+v", entries)
	}
}

// A decision about a webhook of the right sender whose content is invalid has its tenant and payload. Erase removes it.
func TestInvalidDecision(t *testing.T) {
	j := NewDecisions(true)
	invalid := func(tenant string, cut bool) webhookgate.Outcome {
		o := outcome(tenant, "rejected", `{"n":2}`)
		o.Webhook.Snapshot = false
		o.Invalid, o.Webhook = &webhookgate.Invalid{Webhook: *o.Webhook, Cut: cut}, nil
		return o
	}
	j.Add(outcome("acme", "forwarded", `{"n":1}`))
	j.Add(invalid("acme", false))
	j.Add(invalid("acme", true))
	j.Add(outcome("acme", "forwarded", `{"n":3}`))
	j.Add(outcome("other", "forwarded", `{"n":4}`))
	if e := j.get(2); e.Tenant != "acme" || before(j, 2) != "1 1" || string(e.payload()) != `{"n":2}` {
		t.Errorf("%+v", e)
	}
	if e := j.get(3); e.payload() != nil {
		t.Errorf("the beginning of a body: %+v", e)
	}
	if got := before(j, 4); got != "1 1" {
		t.Errorf("compared with what is invalid: %s", got)
	}
	stored := invalid("acme", false)
	stored.Stored = true
	j.Add(stored)
	if got := seqs(j.list(inbox.Filter{})); got != "5 4 3 2 1" {
		t.Errorf("the inbox has one of these: %s", got)
	}
	j.erase("crm", "acme")
	if got := seqs(j.list(inbox.Filter{})); got != "5" {
		t.Errorf("after an erasure: %s", got)
	}
}

// If the snapshot that the receiver took last is too large to be remembered, the next one is not compared
// with an older one: the page would show changes that did not happen.
func TestNothingIsComparedAcrossAPayloadThatIsNotKept(t *testing.T) {
	j := NewDecisions(true)
	j.Add(outcome("acme", "forwarded", `{"n":1}`))
	j.Add(outcome("acme", "forwarded", `{"n":2}`+strings.Repeat(" ", maxPayload)))
	j.Add(outcome("acme", "failed", `{"n":3}`))
	j.Add(outcome("acme", "forwarded", `{"n":3}`))
	j.Add(outcome("acme", "forwarded", `{"n":4}`))
	for seq, want := range map[int64]string{3: "- -", 4: "- -", 5: "4 4"} {
		if got := before(j, seq); got != want {
			t.Errorf("before %d: %s, want %s", seq, got, want)
		}
	}
}

// Requests without the secret do not push out decisions about those that had it.
func TestDecisionsAreBounded(t *testing.T) {
	j := NewDecisions(true)
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
	large := `{"text":"` + strings.Repeat("x", maxPayload-20) + `"}`
	o := outcome(strings.Repeat("ä", maxPayload), "forwarded", `{}`)
	o.Why, o.Faults = large, slices.Repeat([]content.Fault{{Path: large, Message: large}}, 1000)
	o.Webhook.Header = http.Header{"X-Large": {large}}
	j.Add(o)
	if e := j.list(inbox.Filter{Limit: 1})[0]; len(e.Tenant)+len(e.Why)+len(e.Faults[0].Path)+len(e.Faults[0].Message) > 5*maxText || len(e.Faults) != maxFaults || e.sent != nil || !strings.HasSuffix(e.Tenant, "ä…") {
		t.Errorf("kept: %+v", e)
	}
	j.Add(outcome("huge", "forwarded", large+strings.Repeat(" ", maxPayload)))
	if e := j.list(inbox.Filter{Limit: 1})[0]; e.Tenant != "huge" || e.payload() != nil {
		t.Errorf("kept: %s, %d bytes", e.Tenant, len(e.payload()))
	}
}

func TestWithoutContacts(t *testing.T) {
	for _, tc := range []struct{ name, body, want string }{
		{"documented", `{"payload": {"tenant":{"account":{"id":1e3,"contacts":[{"email":"a@b.example"}],"name":"A<B"}, "code":"x"}}}`,
			`{"payload":{"tenant":{"account":{"id":1e3,"name":"A<B"},"code":"x"}}}`},
		{"none there", `{"payload":{"tenant":{"account":{"id":1}}}}`, `{"payload":{"tenant":{"account":{"id":1}}}}`},
		{"elsewhere", `{"list":[{"Contacts":{"a":1},"b":[]}, 1.50, "x\u0041"],"contacts":2}`, `{"list":[{"b":[]},1.50,"x\u0041"]}`},
		{"by another way of writing", `{"account":{"cont\u0061cts":[1]}}`, `{"account":{}}`},
		{"twice", `{"contacts":1,"contacts":2}`, `{}`},
		{"a number", ` 1 `, `1`},
		{"first, and others after it", `{"contacts":1,"contacts":{"x":[1,{}]},"b":2}`, `{"b":2}`},
		{"in the middle, twice", `{"a":1,"contacts":1,"CONTACTS":2,"b":2}`, `{"a":1,"b":2}`},
		{"a value of that name", `{"a":"contacts","b":["contacts",1]}`, `{"a":"contacts","b":["contacts",1]}`},
		{"deep", strings.Repeat("[", 64) + strings.Repeat("]", 64), strings.Repeat("[", 64) + strings.Repeat("]", 64)},
		{"torn", `{"payload":{"tenant":`, ""},
		{"no JSON", `hello`, ""},
	} {
		if got := string(withoutContacts([]byte(tc.body))); got != tc.want {
			t.Errorf("%s: %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

func FuzzWithoutContacts(f *testing.F) {
	f.Add([]byte(`{"payload":{"tenant":{"account":{"contacts":[{"email":"a@b.example"}]}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		once := withoutContacts(body)
		if once == nil {
			return
		}
		if !json.Valid(once) || strings.Contains(strings.ToLower(string(once)), `"contacts":`) && !strings.Contains(string(once), `\`) {
			t.Errorf("%q", once)
		}
		if twice := withoutContacts(once); string(twice) != string(once) {
			t.Errorf("%q\n%q", once, twice)
		}
	})
}

func BenchmarkWithoutContacts(b *testing.B) {
	body := []byte(`{"type":"TenantProvisioningChange","payload":{"tenant":{"id":1,"code":"acme","account":{"id":1,"contacts":[{"id":1,"email":"a@b.example"}]}},"change":{"features":[` +
		strings.Repeat(`{"code":"users","name":"Users","value":"","quantity":5},`, 15) + `{"code":"sso","quantity":null}]}}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if withoutContacts(body) == nil {
			b.Fatal("nothing left")
		}
	}
}
