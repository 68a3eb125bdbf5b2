package shared

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/webhookgate"
)

// A receiver that can't be reached for a reason that takes many words, as "certificate is valid for" and many
// names, gets its webhooks once it can be.
func TestDeliversAfterLongErrors(t *testing.T) {
	wrong := x509.HostnameError{Certificate: new(x509.Certificate), Host: "billing-hooks.example.com"}
	for n := range 99 { // of more than that Go does not write the names
		wrong.Certificate.DNSNames = append(wrong.Certificate.DNSNames, fmt.Sprintf("customer-%d.shops.eu-central.example.com", n))
	}
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(_ *Config, cfg *courier.Config) {
			cfg.Pause = func(time.Duration) time.Duration { return time.Second }
		}
		c.receiver.Set(func(*webhookgate.Webhook, int) webhookgate.Attempt {
			return webhookgate.Attempt{Err: &tls.CertificateVerificationError{Err: wrong}}
		})
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		r.send(t, "acme", "B")
		time.Sleep(2 * time.Minute) // more tries than are remembered
		c.receiver.Set(nil)
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A", "acme:B")
	})
}
