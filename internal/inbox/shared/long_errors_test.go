package shared

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
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

// The servers take headers up to 64 KiB. The longest names, errors and answers fit, of the letters that take most bytes in
// JSON.
func TestLongestOutcomeFits(t *testing.T) {
	w := inboxtest.Webhook(strings.Repeat("\"", message.LongestHead/4*3-256), "A")
	r := &record.Record{ID: 1 << 60, Webhook: w}
	for _, letter := range []string{`"`, `\`, "<", "&", "\x00", "\xff", "\u2028", "\u202e", "ü"} {
		long := strings.Repeat(letter, 8<<10)
		r.Status = record.Status{State: record.Waiting, Why: "the receiver will not take it", Receiver: "billing"}
		for range 2 * record.KeptAttempts {
			now := time.Now()
			r.NoteAttempt(now, now.Add(time.Hour), webhookgate.Attempt{Status: 502, Err: errors.New(long), Excerpt: long})
		}
		m := message.New("subject", r, message.Content{})
		servers.Rollup(m)
		servers.ExpectOn(m, "subject", 1<<60)
		if size := len(m.Header.Get(message.HeadHeader)); size > message.LongestHead || size < message.LongestHead-512 {
			t.Fatalf("the head takes %d bytes", size)
		}
		if size := len(m.Header.Get(message.StatusHeader)); size > outcome {
			t.Errorf("%q: the outcome takes %d bytes", letter, size)
		}
		if size := m.Size(); size > 64<<10-1<<10 {
			t.Errorf("%q: the headers take %d bytes", letter, size)
		}
	}
}
