// Package settings reads usher's settings from environment variables and checks them.
//
// Each section ([Outbound], [Webhook], …) is a struct whose tags name the variables and
// their defaults. [Read] fills the sections, checks them, and adds what follows from them:
// parsed addresses, the content of files. What it returns can be used as it is. If anything
// is wrong, it returns every problem at once, one line each, and never the value of a secret.
//
// The tags are the only list of names and defaults. What counts as a slip of a known name,
// 'usher help settings' and docs/reference.md are made from them; reference.go adds what
// each setting means.
package settings

import (
	"cmp"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"usher/internal/secret"
)

// Settings is everything that the environment says.
type Settings struct {
	Outbound     Outbound
	Ports        []Port // the main port first, then USHER_PORTS_0_…, USHER_PORTS_1_…; none when outbound is off
	Webhook      Webhook
	Entitlements Entitlements
	Admin        Admin

	// Unknown are the USHER_ variables that usher does not know and that look like no slip.
	Unknown []string
	// Unused are the variables that are set for a part that is off.
	Unused []Unused
}

// Entitlements is the port that answers what a tenant may use. It is on when Listen is set.
type Entitlements struct {
	Listen string        `env:"USHER_ENTITLEMENTS_LISTEN"`
	Key    *secret.Value `secret:"USHER_ENTITLEMENTS_KEY"`
}

// Admin is the admin port, the log and the shutdown.
type Admin struct {
	Listen        string        `env:"USHER_ADMIN_LISTEN" envDefault:"127.0.0.1:9095"`
	Token         *secret.Value `secret:"USHER_ADMIN_TOKEN"`
	ReadToken     *secret.Value `secret:"USHER_ADMIN_READ_TOKEN"`
	Level         slog.Level    `env:"USHER_LOG_LEVEL" envDefault:"info"`
	LogFormat     string        `env:"USHER_LOG_FORMAT" envDefault:"auto"`
	ShutdownDelay time.Duration `env:"USHER_SHUTDOWN_DELAY" envDefault:"0s"`
	ShutdownGrace time.Duration `env:"USHER_SHUTDOWN_GRACE" envDefault:"15s"`

	NoColour bool `env:"-"` // NO_COLOR is set, see https://no-color.org
}

// Read reads the settings of an usher that serves: at least one part has to be on. Its error
// is [Problems]. A value that cannot be read is a problem also where its part is off.
func Read(environ []string) (*Settings, error) { return read(environ, requireAnyPart) }

// ReadOutbound is Read for 'usher exec': outbound has to be on.
func ReadOutbound(environ []string) (*Settings, error) { return read(environ, requireOutbound) }

func read(environ []string, required func(*Settings, *reader)) (*Settings, error) {
	r := newReader(environ)
	s := new(Settings)
	r.section("", &s.Outbound)
	r.section("", &s.Webhook)
	r.section("", &s.Entitlements)
	r.section("", &s.Admin)
	s.Webhook.further = len(r.indexes(receiverIndex)) > 0
	s.Webhook.KeepUnclaimed = s.EntitlementsOn() && s.Webhook.Inbox != ""
	s.Admin.NoColour = r.env["NO_COLOR"] != ""
	s.Unknown = r.unknown()
	s.Unused = s.unused(r)
	required(s, r)
	s.Outbound.check(r)
	s.Ports = readPorts(r, &s.Outbound)
	s.Admin.check(r)
	s.Webhook.check(r)
	s.Entitlements.check(r, s)
	checkDistinct(r, s)
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return s, nil
}

// ReadAdmin reads what it takes to call the admin port of a running usher, and no more:
// the caller may not have the other settings. For a caller "off" is a wrong setting.
func ReadAdmin(environ []string) (*Admin, error) {
	r := newReader(environ)
	a := new(Admin)
	r.section("", a)
	if a.Listen == "off" {
		r.problem("USHER_ADMIN_LISTEN", "is off, so there is no admin port to ask: set it to the address of the admin port of the running usher")
	}
	r.listen("USHER_ADMIN_LISTEN", a.Listen)
	r.tokens("USHER_ADMIN_TOKEN", a.Token)
	r.tokens("USHER_ADMIN_READ_TOKEN", a.ReadToken)
	bad := slices.DeleteFunc(r.problems, func(problem string) bool { return !strings.HasPrefix(problem, "USHER_ADMIN_") })
	if len(bad) > 0 {
		return nil, bad
	}
	return a, nil
}

// AdminListen is where the admin port is. It reads one setting and no more: a health check
// must not depend on the secrets being mounted.
func AdminListen(environ []string) string {
	const name = "USHER_ADMIN_LISTEN"
	return cmp.Or(Environment(environ)[name], Default(name))
}

func (a *Admin) check(r *reader) {
	if a.Listen != "off" {
		loopback, ok := r.listen("USHER_ADMIN_LISTEN", a.Listen)
		if ok && !loopback && a.Token == nil {
			r.problem("USHER_ADMIN_LISTEN", "is %q, which others can reach: set USHER_ADMIN_TOKEN (or USHER_ADMIN_TOKEN_FILE), or listen on 127.0.0.1", a.Listen)
		}
	}
	acting := r.tokens("USHER_ADMIN_TOKEN", a.Token)
	for _, t := range r.tokens("USHER_ADMIN_READ_TOKEN", a.ReadToken) {
		if slices.ContainsFunc(acting, func(o secret.Token) bool { return o.Value == t.Value }) {
			r.problem("USHER_ADMIN_READ_TOKEN", "holds a token (not shown) that USHER_ADMIN_TOKEN holds, too: with it one may act")
		}
	}
	if a.ReadToken != nil && a.Token == nil {
		r.problem("USHER_ADMIN_READ_TOKEN", "is set, but USHER_ADMIN_TOKEN is not: without that everybody may look and act")
	}
	if !slices.Contains([]string{"auto", "text", "json"}, a.LogFormat) {
		r.invalid("USHER_LOG_FORMAT", "auto, text or json")
	}
}

func (e *Entitlements) check(r *reader, s *Settings) {
	beyond := false
	if e.Listen != "" {
		loopback, ok := r.listen("USHER_ENTITLEMENTS_LISTEN", e.Listen)
		if beyond = ok && !loopback; beyond && e.Key == nil && !s.Outbound.Insecure {
			r.problem("USHER_ENTITLEMENTS_LISTEN", "is %q, which others can reach, and callers need no key: set USHER_ENTITLEMENTS_KEY (or USHER_ENTITLEMENTS_KEY_FILE), or USHER_INSECURE=true if everybody there may ask", e.Listen)
		}
		r.require("USHER_WEBHOOK_INBOX", s.Webhook.Inbox != "", "where webhooks are kept, such as file:/var/lib/usher/inbox.db or postgres://user@host/database: USHER_ENTITLEMENTS_LISTEN answers from it")
		if s.Webhook.Listen == "off" && s.Webhook.InboxAddress != nil && !s.Webhook.SharedInbox() {
			r.problem("USHER_WEBHOOK_LISTEN", "is off, but with a file inbox no other usher can take webhooks in: use postgres://user@host/database in USHER_WEBHOOK_INBOX, or set an address")
		}
	}
	r.keys("USHER_ENTITLEMENTS_KEY", e.Key, beyond)
}

// checkDistinct finds two listeners on one address.
func checkDistinct(r *reader, s *Settings) {
	seen := make(map[string]string)
	see := func(name, addr string) {
		if strings.HasSuffix(addr, ":0") || addr == "" || addr == "off" {
			return
		}
		if other, taken := seen[addr]; taken {
			r.problem(name, "is %q, but should differ from %s", addr, other)
			return
		}
		seen[addr] = name
	}
	for _, p := range s.Ports {
		see(p.prefix+"LISTEN", p.Listen)
	}
	if s.GateOn() {
		see("USHER_WEBHOOK_LISTEN", s.Webhook.Listen)
	}
	see("USHER_ENTITLEMENTS_LISTEN", s.Entitlements.Listen)
	see("USHER_ADMIN_LISTEN", s.Admin.Listen)
}

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
			add(gate, "USHER_WEBHOOK_RECEIVERS_"+index+"_", reflect.TypeFor[receiverVars]())
		}
	}
	return unused
}

// everyPort are the variables of Outbound that the admin port uses, too.
var everyPort = []string{"USHER_ALLOWED_HOSTS"}

// Secrets returns every secret whose file usher watches: all of the parts that are on.
func (s *Settings) Secrets() []*secret.Value {
	values := []*secret.Value{s.Admin.Token, s.Admin.ReadToken}
	if s.EntitlementsOn() {
		values = append(values, s.Entitlements.Key)
	}
	if s.EntitlementsOn() && !s.GateOn() {
		values = append(values, s.Webhook.InboxPassword)
	}
	if s.GateOn() {
		w := &s.Webhook
		values = append(values, w.Token, w.HMACSecret, w.SignSecret, w.InboxPassword)
		values = append(values, w.signSecrets...)
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
