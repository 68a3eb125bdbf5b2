package settings

import (
	"cmp"
	"net/url"
	"time"

	"usher/internal/secret"
	"usher/webhookgate"
)

// Receiver is an application that usher delivers webhooks to. A further receiver inherits
// from the gate's settings what is not given.
type Receiver struct {
	Name        string        `env:"NAME"`
	Platforms   List          `env:"PLATFORMS"`
	ForwardURL  string        `env:"FORWARD_URL"`
	SignSecret  *secret.Value `secret:"SIGN_SECRET"`
	Timeout     time.Duration `env:"TIMEOUT"`
	Concurrency int           `env:"CONCURRENCY"`

	URL *url.URL `env:"-"` // of ForwardURL

	prefix string // of its variables
}

// Variable is the one that its address comes from.
func (c *Receiver) Variable() string { return c.prefix + "FORWARD_URL" }

// readReceivers returns the receivers: the main one first, if there is one, then USHER_WEBHOOK_RECEIVERS_0_…, USHER_WEBHOOK_RECEIVERS_1_….
func readReceivers(r *reader, w *Webhook) []Receiver {
	var all []Receiver
	if w.ForwardURL != "" {
		main := Receiver{
			Name: webhookgate.MainReceiver, ForwardURL: w.ForwardURL, SignSecret: w.SignSecret,
			Timeout: w.Timeout, Concurrency: w.InboxConcurrency, prefix: "USHER_WEBHOOK_",
		}
		main.URL = forwardURL(r, main.Variable(), main.ForwardURL)
		all = append(all, main)
	}
	names := map[string]string{webhookgate.MainReceiver: "USHER_WEBHOOK_FORWARD_URL"}
	claims := make(map[string]string) // by platform
	for _, index := range r.indexes(receiverIndex) {
		c := readReceiver(r, index, w)
		if other, taken := names[c.Name]; taken {
			r.problem(c.prefix+"NAME", "is %q, but should differ from the name of %s", c.Name, other)
		}
		names[c.Name] = c.prefix + "…"
		for _, platform := range c.Platforms {
			if other, taken := claims[platform]; taken && other != c.prefix {
				r.problem(c.prefix+"PLATFORMS", "has %q, which %sPLATFORMS has too: a platform's webhooks should go to one receiver", platform, other)
			}
			claims[platform] = c.prefix
		}
		all = append(all, c)
	}
	if len(all) > 1 && w.MaxInflight > 0 && w.MaxInflight <= len(all) {
		r.invalid("USHER_WEBHOOK_MAX_INFLIGHT", "more than there are receivers: each has an equal share")
	}
	return all
}

// readReceiver reads a further receiver.
func readReceiver(r *reader, index string, w *Webhook) Receiver {
	c := Receiver{prefix: "USHER_WEBHOOK_RECEIVERS_" + index + "_"}
	r.section(c.prefix, &c)
	if c.Name = cmp.Or(c.Name, index); !shortName(c.Name) {
		r.invalid(c.prefix+"NAME", "a short name without white space")
	}
	r.require(c.prefix+"PLATFORMS", len(c.Platforms) > 0 || !w.on(), "the codes of the platforms whose webhooks go there, separated by commas")
	r.require(c.Variable(), c.ForwardURL != "" || !w.on(), "the receiver's address, such as http://127.0.0.1:3000/provisioning")
	if c.ForwardURL != "" {
		c.URL = forwardURL(r, c.Variable(), c.ForwardURL)
	}
	if r.env[c.prefix+"TIMEOUT"] != "" && c.Timeout <= 0 {
		r.invalid(c.prefix+"TIMEOUT", "a duration above zero, such as 10s")
	}
	if r.env[c.prefix+"CONCURRENCY"] != "" {
		r.positive(c.prefix+"CONCURRENCY", int64(c.Concurrency))
	}
	r.signSecret(c.prefix+"SIGN_SECRET", c.SignSecret)
	c.Timeout = cmp.Or(c.Timeout, w.Timeout)
	c.Concurrency = cmp.Or(c.Concurrency, w.InboxConcurrency)
	c.SignSecret = cmp.Or(c.SignSecret, w.SignSecret)
	return c
}
