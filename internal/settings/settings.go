// Package settings reads usher's settings from environment variables and checks them.
//
// One table (table.go) has each variable: the field that it fills, its default, and what it
// means. [Read] fills the fields, checks them, and adds what follows from them: parsed addresses,
// the content of files. What it returns can be used as it is. If anything is wrong, it returns
// every problem at once, one line each, and never the value of a secret.
//
// What counts as a slip of a known name, 'usher help settings' and docs/reference.md come from
// the same table.
package settings

import (
	"cmp"
	"log/slog"
	"maps"
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
	// Watched are the secrets in files, which may change: those of the parts that are on.
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

	NoColour bool // NO_COLOR is set, see https://no-color.org
}

// Read reads the settings of an usher that serves: at least one part has to be on. Its error
// is [Problems]. A value that cannot be read is a problem also where its part is off.
func Read(environ []string) (*Settings, error) { return read(environ, requireAnyPart) }

// ReadOutbound is Read for 'usher exec': outbound has to be on.
func ReadOutbound(environ []string) (*Settings, error) { return read(environ, requireOutbound) }

func read(environ []string, required func(*Settings, *reader)) (*Settings, error) {
	r := newReader(environ)
	s := new(Settings)
	for _, sec := range s.sections() {
		r.read(sec.rows, "n")
	}
	s.Webhook.further = r.indexes(receiversPrefix)
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
	for name, v := range r.files {
		if !slices.ContainsFunc(s.Unused, func(u Unused) bool { return u.Name == name }) {
			s.Watched = append(s.Watched, v)
		}
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return s, nil
}

// ReadAdmin reads what it takes to call the admin port of a running usher, and no more:
// the caller may not have the other settings. For a caller "off" is a wrong setting.
func ReadAdmin(environ []string) (*Admin, error) {
	r := newReader(environ)
	s := new(Settings)
	a := &s.Admin
	for _, sec := range s.sections() {
		r.read(slices.DeleteFunc(sec.rows, func(v Variable) bool { return !strings.HasPrefix(v.Name, "USHER_ADMIN_") }), "")
	}
	if a.Listen == "off" {
		r.problem("USHER_ADMIN_LISTEN", "is off, so there is no admin port to ask: set it to the address of the admin port of the running usher")
	}
	r.listen("USHER_ADMIN_LISTEN", a.Listen)
	r.tokens("USHER_ADMIN_TOKEN", a.Token)
	r.tokens("USHER_ADMIN_READ_TOKEN", a.ReadToken)
	if len(r.problems) > 0 {
		return nil, r.problems
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
	if r.listen("USHER_ADMIN_LISTEN", a.Listen) && a.Token == nil {
		r.problem("USHER_ADMIN_LISTEN", "is %q, which others can reach: set USHER_ADMIN_TOKEN (or USHER_ADMIN_TOKEN_FILE), or listen on 127.0.0.1", a.Listen)
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
	reachable := false
	if e.Listen != "" {
		reachable = r.listen("USHER_ENTITLEMENTS_LISTEN", e.Listen)
		if reachable && e.Key == nil && !s.Outbound.Insecure {
			r.problem("USHER_ENTITLEMENTS_LISTEN", "is %q, which others can reach, and callers need no key: set USHER_ENTITLEMENTS_KEY (or USHER_ENTITLEMENTS_KEY_FILE), or USHER_INSECURE=true if everybody there may ask", e.Listen)
		}
		r.require("USHER_WEBHOOK_INBOX", s.Webhook.Inbox != "", "where webhooks are kept, such as file:/var/lib/usher/inbox.db or postgres://user@host/database: USHER_ENTITLEMENTS_LISTEN answers from it")
		if s.Webhook.Listen == "off" && s.Webhook.InboxAddress != nil && !s.Webhook.SharedInbox() {
			r.problem("USHER_WEBHOOK_LISTEN", "is off, but with a file inbox no other usher can take webhooks in: use postgres://user@host/database in USHER_WEBHOOK_INBOX, or set an address")
		}
	}
	r.keys("USHER_ENTITLEMENTS_KEY", e.Key, reachable)
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
	On   bool
	Off  string // says that the part is off, and what switches it on
}

// Parts returns all three: outbound, gate and entitlements.
func (s *Settings) Parts() [3]Part {
	gate := "the webhook gate is off; to switch it on, set USHER_WEBHOOK_FORWARD_URL"
	if s.Webhook.Listen == "off" {
		gate = "the webhook gate is off; to switch it on, set USHER_WEBHOOK_LISTEN to an address"
	}
	return [3]Part{
		{"outbound", s.OutboundOn(), "outbound is off; to switch it on, set USHER_BASE_URL"},
		{"gate", s.GateOn(), gate},
		{"entitlements", s.EntitlementsOn(), "the entitlements port is off; to switch it on, set USHER_ENTITLEMENTS_LISTEN"},
	}
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
func (s *Settings) unused(r *reader) (unused []Unused) {
	elsewhere := func(name string) bool { // it is used, though its own part is off
		return name == "USHER_ALLOWED_HOSTS" || name == "USHER_WEBHOOK_LISTEN" && r.env[name] == "off" ||
			s.EntitlementsOn() && (strings.HasPrefix(name, "USHER_WEBHOOK_INBOX") || name == "USHER_INSECURE")
	}
	given := slices.Sorted(maps.Keys(r.env))
	for _, part := range s.Parts() {
		for _, sec := range s.sections() {
			if part.On || sec.part != part.Name {
				continue
			}
			for _, known := range names(sec.rows) {
				for _, name := range given {
					if generic(name) == known && !elsewhere(name) {
						unused = append(unused, Unused{name, part.Off})
					}
				}
			}
		}
	}
	return unused
}
