package command

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"

	"usher/internal/catchup"
	"usher/internal/guard"
	"usher/internal/outbound"
	"usher/internal/settings"
	"usher/internal/text"
)

const platformsQuery = `query usherCheck {
  platforms(first: 100) {
    nodes { code webhookUrl webhookSigningKey webhookAuthToken provisioningEnabled checkoutValidationEnabled } } }`

// platform is what the service has configured for a platform. The keys are secrets: they are compared, never shown.
type platform struct {
	Code                                            string
	WebhookURL, WebhookSigningKey, WebhookAuthToken string
	ProvisioningEnabled, CheckoutValidationEnabled  *bool // nil: the service does not say
}

// platforms compares what the service has configured for its webhooks with the gate's settings: a switch that is off,
// or an address or a key that was changed on one side alone, is a fault that nothing else shows. It asks with a token
// of its own, since few API clients have the scope for it.
func (c *checker) platforms(ctx context.Context, s *settings.Settings) {
	var got struct{ Platforms struct{ Nodes []platform } }
	_, err := c.outbound.NewCaller("product:read").Call(ctx, platformsQuery, nil, &got)
	all := got.Platforms.Nodes
	if refused, ok := errors.AsType[outbound.CallRefusedError](err); ok {
		c.note("platforms: not looked: to compare what the service has configured, allow the API client the scope product:read (%v)", refused)
		return
	}
	switch {
	case err != nil:
		c.note("platforms: not looked: %v", err)
		return
	case len(all) == 0:
		c.fail("platforms: the service has none, so it sends no webhooks: create one, with the address of this gate")
	}
	fits := func(p platform) bool { return addressFault(p.WebhookURL, s) == "" }
	for _, p := range all {
		switch {
		case p.WebhookURL == "" && (p.ProvisioningEnabled == nil || !*p.ProvisioningEnabled):
			c.note("platform %s: it sends no webhooks: it has no webhook URL, and provisioning is off", p.Code)
		case !fits(p) && slices.ContainsFunc(all, fits):
			c.note("platform %s: its webhooks go elsewhere: %s", p.Code, addressFault(p.WebhookURL, s))
		default:
			c.platform(p, s)
		}
	}
}

// webhookLog reads an entry of the log that catch-up needs.
func (c *checker) webhookLog(ctx context.Context) {
	var got struct {
		WebhookEvents struct{ Nodes []struct{ ID string } }
	}
	const query = "query usherCheck { webhookEvents(first: 1) { nodes { id } } }"
	_, err := c.outbound.NewCaller("workflow:read").Call(ctx, query, nil, &got)
	if refused, ok := errors.AsType[outbound.CallRefusedError](err); ok {
		c.fail("webhook log: catch-up cannot read it: allow the API client the scope workflow:read (%v)", refused)
	} else if err != nil {
		c.fail("webhook log: catch-up cannot read it: %v", err)
	} else {
		c.ok("webhook log: can be read")
	}
}

// platform compares a platform that seems to be meant for this gate.
func (c *checker) platform(p platform, s *settings.Settings) {
	var faults []string
	fault := func(found string) {
		if found != "" {
			faults = append(faults, found)
		}
	}
	if p.ProvisioningEnabled != nil && !*p.ProvisioningEnabled {
		fault("provisioning is off, so it sends no webhooks: switch it on in the service")
	}
	fault(addressFault(p.WebhookURL, s))
	given := []string{p.WebhookAuthToken}
	if u, err := url.Parse(p.WebhookURL); err == nil {
		if last, ok := strings.CutPrefix(u.Path, s.Webhook.Path+"/"); ok {
			given = append(given, last) // as a path segment
		}
	}
	fault(secretFault("auth token", "USHER_WEBHOOK_TOKEN", given, s.Webhook.Tokens))
	fault(secretFault("signing key", "USHER_WEBHOOK_SIGNING_KEY", []string{p.WebhookSigningKey}, s.Webhook.SigningKeys))
	checkout := ""
	if p.CheckoutValidationEnabled != nil {
		checkout = "; checkout validation is off"
		if *p.CheckoutValidationEnabled {
			checkout = "; checkout validation is on"
			if !slices.Contains(s.Webhook.SyncTypes, "CheckoutValidation") {
				fault("checkout validation is on, but USHER_WEBHOOK_SYNC_TYPES does not have CheckoutValidation, " +
					"so nobody asks your receiver: add it, or switch it off in the service")
			} else if len(s.Webhook.Receivers.All()) == 0 {
				fault("checkout validation is on, but there is no receiver to ask, so every purchase is blocked: " +
					"set USHER_WEBHOOK_FORWARD_URL, or switch it off in the service")
			}
		}
	}
	for _, f := range faults {
		c.fail("platform %s: %s", p.Code, f)
	}
	if len(faults) == 0 {
		c.ok("platform %s: its address, token and key fit, and provisioning is on%s", text.Visible(p.Code), checkout)
	}
}

// addressFault returns what is wrong with a webhook URL, as far as usher can tell: it does not know its own address
// from outside. It shows nothing of the URL, whose path may be a secret.
func addressFault(address string, s *settings.Settings) string {
	u, err := url.Parse(address)
	switch {
	case address == "":
		return "it has no webhook URL: set it in the service to the address of this gate, ending in " + s.Webhook.Path
	case err != nil || u.Host == "":
		return "its webhook URL cannot be read: set it in the service to the address of this gate, ending in " + s.Webhook.Path
	case isLoopback(u.Hostname()) && !isLoopback(s.Outbound.Base.Hostname()):
		return "its webhook URL is on the service's own machine: set it in the service to an address at which it reaches this gate"
	case len(s.Webhook.CatchUp) > 0 && !catchup.IsBelow(address, s.Webhook.CatchUp):
		return "its webhook URL is not in USHER_WEBHOOK_CATCH_UP_URL: make both the same"
	case len(s.Webhook.CatchUp) > 0: // a proxy in between may change the path
	case u.Path != s.Webhook.Path && (s.Webhook.Tokens == nil || !strings.HasPrefix(u.Path, s.Webhook.Path+"/")):
		return "the path of its webhook URL is not " + s.Webhook.Path +
			": change it in the service, or set USHER_WEBHOOK_PATH"
	}
	return ""
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// secretFault returns what is wrong if the gate checks a secret and the service has another one, or none.
func secretFault(what, variable string, given []string, wanted func() string) string {
	given = slices.DeleteFunc(given, func(s string) bool { return s == "" })
	switch {
	case wanted == nil || guard.OneOf(given, wanted()):
		return ""
	case len(given) == 0:
		return "it has no " + what + ", but " + variable + " is set, so usher rejects its webhooks: set the " + what + " in the service"
	}
	return "its " + what + " is not in " + variable + ", so usher rejects its webhooks: make both the same"
}
