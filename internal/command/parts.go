package command

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"usher/internal/secret"
)

// A part is something that usher does. Each is on when it has its setting, and works
// without the others: one that is off opens no port, needs no secret, and plays no role
// in readiness, on the page or in the metrics.
type part struct {
	name    string // as in /readyz/NAME
	title   string // in a sentence
	setting string // what switches it on
}

var (
	outboundPart     = part{"outbound", "outbound", "set USHER_BASE_URL"}
	gatePart         = part{"gate", "the webhook gate", "set USHER_WEBHOOK_FORWARD_URL"}
	entitlementsPart = part{"entitlements", "the entitlements port", "set USHER_ENTITLEMENTS_LISTEN"}
)

// off says that a part is, and what to do about it.
func (p part) off() string { return fmt.Sprintf("%s is off; to switch it on, %s", p.title, p.setting) }

func (s *Settings) outboundOn() bool { return s.Outbound.BaseURL != "" }

func (s *Settings) gateOn() bool { return s.Webhook.on() }

// need says what is missing for a command to make sense.
type need func(*Settings, *reader)

// needAny is for those that serve: one part has to be on.
func needAny(s *Settings, r *reader) {
	if !s.outboundOn() && !s.gateOn() && !s.entitlementsOn() {
		r.problem("USHER_BASE_URL", "is not set, and every part of usher is off: set USHER_BASE_URL to call the billing service, "+
			"USHER_WEBHOOK_FORWARD_URL to receive webhooks, or USHER_ENTITLEMENTS_LISTEN to answer what a tenant may use. To try usher without settings, run 'usher demo'")
	}
}

// needOutbound is for exec.
func needOutbound(s *Settings, r *reader) {
	r.require("USHER_BASE_URL", s.outboundOn(), "the billing service's base address, such as https://billing.example.com: 'usher exec' is for programs that call it")
}

// Unused is a variable of a part that is off.
type Unused struct{ Name, Why string }

// unused finds the variables that are set for a part that is off. Whoever sets one relies
// on it.
func (s *Settings) unused(r *reader) []Unused {
	var unused []Unused
	add := func(p part, prefix string, of reflect.Type) {
		for _, name := range namesIn(prefix, of) {
			switchedOff := name == "USHER_WEBHOOK_LISTEN" && r.env[name] == "off" // which is used
			read := s.entitlementsOn() && (strings.HasPrefix(name, "USHER_WEBHOOK_INBOX") || name == "USHER_INSECURE")
			if r.env[name] != "" && !switchedOff && !read && !slices.Contains(everyPort, name) {
				unused = append(unused, Unused{name, p.off()})
			}
		}
	}
	if !s.outboundOn() {
		add(outboundPart, "", reflect.TypeFor[Outbound]())
		for _, index := range r.indexes(portIndex) {
			add(outboundPart, "USHER_PORTS_"+index+"_", reflect.TypeFor[Port]())
		}
	}
	if !s.entitlementsOn() {
		add(entitlementsPart, "", reflect.TypeFor[Entitlements]())
	}
	if !s.gateOn() {
		add(s.Webhook.part(), "", reflect.TypeFor[Webhook]())
		for _, index := range r.indexes(receiverIndex) { // of a gate that was switched off
			add(s.Webhook.part(), "USHER_WEBHOOK_RECEIVERS_"+index+"_", reflect.TypeFor[Receiver]())
		}
	}
	return unused
}

// everyPort are those of Outbound that the admin port uses, too.
var everyPort = []string{"USHER_ALLOWED_HOSTS"}

// namesIn are the variables of one struct, with the _FILE of each secret.
func namesIn(prefix string, of reflect.Type) []string {
	var names []string
	for _, v := range variablesIn(prefix, of) {
		names = append(names, v.Name)
		if v.Secret {
			names = append(names, v.Name+"_FILE")
		}
	}
	return names
}

// secrets returns every secret whose file is watched: all of the parts that are on, but
// the NKey of the inbox, which is read at the start alone.
func (s *Settings) secrets() []*secret.Value {
	values := []*secret.Value{s.Admin.Token}
	if s.entitlementsOn() {
		values = append(values, s.Entitlements.Key)
	}
	if s.entitlementsOn() && !s.gateOn() {
		values = append(values, s.Webhook.InboxPassword, s.Webhook.InboxToken)
	}
	if s.gateOn() {
		w := &s.Webhook
		values = append(values, w.Token, w.HMACSecret, w.SignSecret, w.InboxPassword, w.InboxToken)
		for _, c := range w.receivers {
			if !slices.Contains(values, c.SignSecret) { // it may be inherited
				values = append(values, c.SignSecret)
			}
		}
	}
	for _, p := range s.Ports { // each once: what is inherited is the main port's
		for _, v := range []*secret.Value{p.ClientSecret, p.Key} {
			if !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
	}
	return values
}
