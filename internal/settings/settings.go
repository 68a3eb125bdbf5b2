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
	"strings"
	"time"

	"usher/internal/inbox"
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
	LogLevel      string        `env:"USHER_LOG_LEVEL" envDefault:"info"`
	LogFormat     string        `env:"USHER_LOG_FORMAT" envDefault:"auto"`
	ShutdownDelay time.Duration `env:"USHER_SHUTDOWN_DELAY" envDefault:"0s"`
	ShutdownGrace time.Duration `env:"USHER_SHUTDOWN_GRACE" envDefault:"15s"`

	Level    slog.Level `env:"-"` // of LogLevel
	NoColour bool       `env:"-"` // NO_COLOR is set, see https://no-color.org
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
	r.headerSafe("USHER_ADMIN_TOKEN", a.Token)
	var bad Problems
	for _, problem := range r.problems {
		if strings.HasPrefix(problem, "USHER_ADMIN_") {
			bad = append(bad, problem)
		}
	}
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
	r.headerSafe("USHER_ADMIN_TOKEN", a.Token)
	if err := a.Level.UnmarshalText([]byte(a.LogLevel)); err != nil {
		r.invalid("USHER_LOG_LEVEL", "debug, info, warn or error")
	}
	switch a.LogFormat {
	case "auto", "text", "json":
	default:
		r.invalid("USHER_LOG_FORMAT", "auto, text or json")
	}
	if a.ShutdownDelay < 0 {
		r.invalid("USHER_SHUTDOWN_DELAY", "a duration, such as 5s")
	}
	if a.ShutdownGrace < 0 {
		r.invalid("USHER_SHUTDOWN_GRACE", "a duration, such as 15s")
	}
}

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
