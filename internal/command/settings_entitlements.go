package command

import (
	"usher/internal/inbox"
	"usher/internal/secret"
)

// Entitlements is the port that answers what a tenant may use. It is on when Listen is set.
type Entitlements struct {
	Listen string        `env:"USHER_ENTITLEMENTS_LISTEN"`
	Key    *secret.Value `secret:"USHER_ENTITLEMENTS_KEY"`
}

func (s *Settings) entitlementsOn() bool { return s.Entitlements.Listen != "" }

func (e *Entitlements) check(r *reader, s *Settings) {
	beyond := false
	if e.Listen != "" {
		loopback, ok := r.listen("USHER_ENTITLEMENTS_LISTEN", e.Listen)
		if beyond = ok && !loopback; beyond && e.Key == nil && !s.Outbound.Insecure {
			r.problem("USHER_ENTITLEMENTS_LISTEN", "is %q, which others can reach, and callers need no key: set USHER_ENTITLEMENTS_KEY (or USHER_ENTITLEMENTS_KEY_FILE), or USHER_INSECURE=true if everybody there may ask", e.Listen)
		}
		r.require("USHER_WEBHOOK_INBOX", s.Webhook.Inbox != "", "where webhooks are kept, such as file:/var/lib/usher/inbox.db or nats://host,host,host: USHER_ENTITLEMENTS_LISTEN answers from it")
		if s.Webhook.Listen == "off" && s.Webhook.Inbox != "" && !inbox.IsNATS(s.Webhook.Inbox) {
			r.problem("USHER_WEBHOOK_LISTEN", "is off, but with a file inbox no other usher can take webhooks in: use nats://host,host,host in USHER_WEBHOOK_INBOX, or set an address")
		}
	}
	r.keys("USHER_ENTITLEMENTS_KEY", e.Key, beyond)
}
