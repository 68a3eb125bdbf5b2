package webhookgate

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whoever shows webhooks to people is told what became of each.
func TestOutcomes(t *testing.T) {
	var told []Outcome
	status := 200
	g := newGate(t, func(c *setup) {
		c.Answered = func(o Outcome) { told = append(told, o) }
		c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return respond(status, "no"), nil })
	})
	first := post(t, g, snapshotOf("acme", "a"))
	post(t, g, snapshotOf("acme", "a"))
	post(t, g, `{"type":"TenantProvisioningChange"}`)
	status = 422
	post(t, g, snapshotOf("acme", "b"))
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
	g := newGate(t, func(c *setup) {
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

// The sender's trace id is on every line about its webhook, the receiver gets the header,
// and a claim that is no trace id is not repeated.
func TestTraceIDInTheLog(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	const header = "00-" + id + "-00f067aa0ba902b7-01"
	var log bytes.Buffer
	var got string
	g := newGate(t, func(c *setup) {
		c.Log, c.Tries = logTo(&log), 1
		c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			got = r.Header.Get("Traceparent")
			return respond(500, ""), nil
		})
	})
	post(t, g, documented, "Traceparent", header)
	post(t, g, "{", "Traceparent", header) // rejected
	if n := strings.Count(log.String(), "trace_id="+id); n != 3 || got != header {
		t.Errorf("%d lines with the trace id, want one of the try and two answers; the receiver got %q:\n%s", n, got, log.String())
	}
	log.Reset()
	post(t, g, documented, "Traceparent", "evil")
	post(t, g, documented)
	if strings.Contains(log.String(), "trace_id") || strings.Contains(log.String(), "evil") {
		t.Error(log.String())
	}
}
