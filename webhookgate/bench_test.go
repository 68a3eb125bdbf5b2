package webhookgate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// BenchmarkGate is the whole way of a webhook, without connections.
func BenchmarkGate(b *testing.B) {
	g := newGate(b, func(c *setup) {
		c.Tokens, c.ForwardSigningKey = tokens("a secret of the sender's"), secret("whsec_c2lnbmluZy1rZXk=")
		c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return respond(200, ""), nil })
	})
	bodies := [2]string{documented, strings.Replace(documented, "4711", "4712", 1)}
	for name, step := range map[string]int{"change": 1, "duplicate": 0} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i += step {
				rec := httptest.NewRecorder()
				if g.ServeHTTP(rec, request(bodies[i%2], "X-Webhook-Token", "a secret of the sender's")); rec.Code != 200 {
					b.Fatal(rec.Body)
				}
			}
		})
	}
}

// BenchmarkLane is the lanes alone.
func BenchmarkLane(b *testing.B) {
	p := newPassThrough(10000, time.Minute, nil, func(w *Webhook) *answer {
		return &answer{status: 200, Decision: forwarded, Webhook: w.ID}
	})
	hooks := [2]*Webhook{}
	for i := range hooks {
		hooks[i] = &Webhook{ID: "id", Lane: LaneName{Tenant: "acme"}, Snapshot: true}
		hooks[i].Digest[0] = byte(i)
	}
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			p.send(hooks[i%2])
		}
	})
	b.Run("duplicate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.send(hooks[0])
		}
	})
}
