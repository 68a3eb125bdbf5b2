package webhookgate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whoever shows webhooks to people is told what became of each.
func TestOutcomes(t *testing.T) {
	var told []Outcome
	status := 200
	g := newGate(t, func(c *Config) {
		c.Answered = func(o Outcome) { told = append(told, o) }
		c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return respond(status, "no"), nil })
	})
	first := post(t, g, snapshot("acme", "a"))
	post(t, g, snapshot("acme", "a"))
	post(t, g, `{"type":"TenantProvisioningChange"}`)
	status = 422
	post(t, g, snapshot("acme", "b"))
	if len(told) != 4 {
		t.Fatalf("told %d times", len(told))
	}
	for i, o := range told {
		if o.At.IsZero() || o.From.String() != "192.0.2.1" { // httptest's
			t.Errorf("%d: %+v", i, o)
		}
	}
	if o := told[0]; o.Decision != forwarded || o.Status != 200 || o.Tries != 1 || o.Webhook.ID != first.Webhook || o.Webhook.Lane.Tenant != "acme" || o.DuplicateOf != "" {
		t.Errorf("%+v", o)
	}
	if o := told[1]; o.Decision != duplicate || o.DuplicateOf != first.Webhook || o.Tries != 0 || o.Webhook == nil {
		t.Errorf("%+v", o)
	}
	if o := told[2]; o.Decision != rejected || o.Status != 422 || o.Why == "" || len(o.Faults) == 0 || o.Webhook != nil {
		t.Errorf("%+v", o)
	}
	if o := told[3]; o.Decision != failed || o.Status != 502 || o.Receiver != 422 || o.Tries != 1 || o.Why == "" {
		t.Errorf("%+v", o)
	}
}

// Who has the answer finds it counted and shown, however long it is.
func TestOutcomeIsToldBeforeTheAnswer(t *testing.T) {
	rec := httptest.NewRecorder()
	told := 0
	g := newGate(t, func(c *Config) {
		c.Answered = func(Outcome) {
			if told++; rec.Body.Len() > 0 {
				t.Error("told after the sender")
			}
		}
	})
	g.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/webhooks", strings.NewReader("[]")))
	if told != 1 || rec.Code != http.StatusUnprocessableEntity {
		t.Errorf("told %d times, status %d", told, rec.Code)
	}
}
