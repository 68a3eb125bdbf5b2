package webhookgate

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// The sender's trace id is on every line about its webhook, the receiver gets the header,
// and a claim that is no trace id is not repeated.
func TestTraceIDInTheLog(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	const header = "00-" + id + "-00f067aa0ba902b7-01"
	var log bytes.Buffer
	var got string
	g := newGate(t, func(c *Config) {
		c.Log, c.Attempts = logTo(&log), 1
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
