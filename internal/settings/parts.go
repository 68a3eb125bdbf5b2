package settings

import (
	"reflect"
	"slices"
	"strings"

	"usher/internal/secret"
)

// A Part is something that usher does. Each is on when it has its setting, and works
// without the others: one that is off opens no port, needs no secret, and plays no role
// in readiness, on the page or in the metrics.
type Part struct {
	Name string // as in /readyz/NAME
	Off  string // says that the part is off, and what switches it on
}

// Parts returns all three, whether they are on or off.
func (s *Settings) Parts() (outbound, gate, entitlements Part) {
	outbound = Part{"outbound", "outbound is off; to switch it on, set USHER_BASE_URL"}
	gate = Part{"gate", "the webhook gate is off; to switch it on, set USHER_WEBHOOK_FORWARD_URL"}
	if s.Webhook.Listen == "off" {
		gate.Off = "the webhook gate is off; to switch it on, set USHER_WEBHOOK_LISTEN to an address"
	}
	entitlements = Part{"entitlements", "the entitlements port is off; to switch it on, set USHER_ENTITLEMENTS_LISTEN"}
	return outbound, gate, entitlements
}

// OutboundOn says whether usher calls the billing service.
func (s *Settings) OutboundOn() bool { return s.Outbound.BaseURL != "" }

// GateOn says whether usher takes webhooks in.
func (s *Settings) GateOn() bool { return s.Webhook.on() }

// EntitlementsOn says whether usher answers what a tenant may use, on a port of its own.
func (s *Settings) EntitlementsOn() bool { return s.Entitlements.Listen != "" }

func requireAnyPart(s *Settings, r *reader) {
	if s.OutboundOn() || s.GateOn() || s.EntitlementsOn() {
		return
	}
	off := ""
	if s.Webhook.Listen == "off" {
		off = " (with an address in USHER_WEBHOOK_LISTEN, which is off)"
	}
	r.problem("USHER_BASE_URL", "is not set, and every part of usher is off: set USHER_BASE_URL to call the billing service, "+
		"USHER_WEBHOOK_FORWARD_URL to receive webhooks%s, or USHER_ENTITLEMENTS_LISTEN to answer what a tenant may use. To try usher without settings, run 'usher demo'", off)
}

func requireOutbound(s *Settings, r *reader) {
	r.require("USHER_BASE_URL", s.OutboundOn(), "the billing service's base address, such as https://billing.example.com: 'usher exec' is for programs that call it")
}

// Unused is a variable of a part that is off.
type Unused struct{ Name, Why string }

// unused finds the variables that are set for a part that is off: the user who sets one
// relies on it.
func (s *Settings) unused(r *reader) []Unused {
	var unused []Unused
	outbound, gate, entitlements := s.Parts()
	add := func(p Part, prefix string, of reflect.Type) {
		for _, name := range names(variablesIn(prefix, of)) {
			switchedOff := name == "USHER_WEBHOOK_LISTEN" && r.env[name] == "off" // then it is used
			read := s.EntitlementsOn() && (strings.HasPrefix(name, "USHER_WEBHOOK_INBOX") || name == "USHER_INSECURE")
			if r.env[name] != "" && !switchedOff && !read && !slices.Contains(everyPort, name) {
				unused = append(unused, Unused{name, p.Off})
			}
		}
	}
	if !s.OutboundOn() {
		add(outbound, "", reflect.TypeFor[Outbound]())
		for _, index := range r.indexes(portIndex) {
			add(outbound, "USHER_PORTS_"+index+"_", reflect.TypeFor[Port]())
		}
	}
	if !s.EntitlementsOn() {
		add(entitlements, "", reflect.TypeFor[Entitlements]())
	}
	if !s.GateOn() {
		add(gate, "", reflect.TypeFor[Webhook]())
		for _, index := range r.indexes(receiverIndex) { // of a gate that was switched off
			add(gate, "USHER_WEBHOOK_RECEIVERS_"+index+"_", reflect.TypeFor[Receiver]())
		}
	}
	return unused
}

// everyPort are the variables of Outbound that the admin port uses, too.
var everyPort = []string{"USHER_ALLOWED_HOSTS"}

// Secrets returns every secret whose file usher watches: all of the parts that are on, but
// the NKey of the inbox, which usher reads at the start only.
func (s *Settings) Secrets() []*secret.Value {
	values := []*secret.Value{s.Admin.Token}
	if s.EntitlementsOn() {
		values = append(values, s.Entitlements.Key)
	}
	if s.EntitlementsOn() && !s.GateOn() {
		values = append(values, s.Webhook.InboxPassword, s.Webhook.InboxToken)
	}
	if s.GateOn() {
		w := &s.Webhook
		values = append(values, w.Token, w.HMACSecret, w.SignSecret, w.InboxPassword, w.InboxToken)
		for _, c := range w.Receivers {
			if !slices.Contains(values, c.SignSecret) { // it may be inherited
				values = append(values, c.SignSecret)
			}
		}
	}
	for _, p := range s.Ports { // each once: ports may inherit them
		for _, v := range []*secret.Value{p.ClientSecret, p.Key} {
			if !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
	}
	return values
}
