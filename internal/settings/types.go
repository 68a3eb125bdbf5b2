package settings

import (
	"log/slog"
	"net/url"
	"time"

	"usher/internal/inbox"
	"usher/internal/outbound"
	"usher/internal/receiver"
	"usher/internal/secret"
	"usher/webhookgate"
)

// Settings has all settings.
type Settings struct {
	Outbound     Outbound
	Webhook      Webhook
	Entitlements Entitlements
	Admin        Admin

	// Unknown are USHER_ variables that usher does not know and whose names are not like a known one.
	Unknown []string
	// Watched are the secrets in files, which may change while usher runs.
	Watched []*secret.Value
}

// Entitlements is the port that answers what a tenant may use. It is on when Listen is set.
type Entitlements struct {
	Listen string
	Key    *secret.Value
}

// Admin is the admin port, the log and the shutdown.
type Admin struct {
	Listen                       string
	Token, ReadToken             *secret.Value
	Level                        slog.Level
	LogFormat                    string
	ShutdownDelay, ShutdownGrace time.Duration
	NotifyURL                    *secret.Value // where usher says by itself that something is wrong

	NoColour bool // NO_COLOR is set, see https://no-color.org
}

// OutboundOn reports whether usher calls the billing service.
func (s *Settings) OutboundOn() bool { return s.Outbound.BaseURL != "" }

// GateOn reports whether usher receives webhooks.
func (s *Settings) GateOn() bool { return s.Webhook.on() }

// EntitlementsOn reports whether usher has a port that answers what a tenant may use.
func (s *Settings) EntitlementsOn() bool { return s.Entitlements.Listen != "" }

// Outbound has the settings of the billing service and of the local ports. This part is on if BaseURL is set.
type Outbound struct {
	outbound.Config // all but its Log; without ports if outbound is off

	BaseURL                  string
	Insecure, AllowPlainHTTP bool

	main outbound.Port
}

// Webhook has the settings of the gate and its inbox. See on for when the gate is on.
type Webhook struct {
	webhookgate.Config // those of its fields that are settings

	Listen, ForwardURL                   string
	TLSCertFile, TLSKeyFile              string
	Insecure                             bool
	Unchecked                            bool // only this machine can reach the gate, and nothing says who may send
	Types                                []string
	SchemaFile                           string
	Timeout                              time.Duration
	token, signingKey, forwardSigningKey *secret.Value

	Inbox            string
	InboxConcurrency int
	// InboxConfig has those of its fields that are settings. Its Address is Inbox, parsed, and
	// nil if there is no inbox.
	InboxConfig   inbox.Config
	inboxPassword *secret.Value // the database's

	catchUpURLs []string
	CatchUp     []*url.URL // where the service sends the webhooks that usher looks for in its log; empty: no catch-up

	receiverIndexes []string // the indexes of USHER_WEBHOOK_RECEIVERS_n_…
}

// on reports whether usher receives webhooks: there must be a receiver or an inbox to put them into.
func (w *Webhook) on() bool {
	return (w.ForwardURL != "" || w.receiverIndexes != nil || w.StoreUnclaimed) && w.Listen != "off"
}

// SharedInbox reports whether several replicas can share the inbox.
func (w *Webhook) SharedInbox() bool {
	return w.InboxConfig.Address != nil && w.InboxConfig.Address.Shared()
}

// extraReceiver is a receiver with its variables, USHER_WEBHOOK_RECEIVERS_n_…. It inherits the settings that it
// does not have from the gate.
type extraReceiver struct {
	receiver.Receiver
	address           string
	forwardSigningKey *secret.Value
}

// positive marks a field, in the table, whose value must be above zero.
type positive struct{ field any }
