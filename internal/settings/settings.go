// Package settings reads usher's settings from environment variables and checks them. One table (table.go) has each
// variable once: the field that it fills, its default, and its meaning. 'usher help settings', docs/reference.md and
// the search for typing errors use it, too.
//
// [Read] fills the fields, checks them, and adds what follows from them, such as parsed addresses and the content of
// files. Its result needs no more checks. If anything is wrong, Read returns all problems at once, one line each, and
// never the value of a secret.
package settings

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strings"

	"usher/internal/secret"
)

// Read reads the settings of an usher that serves: at least one part must be on. Its error is [Problems]. A
// value that cannot be parsed is a problem even if its part is off.
func Read(environ []string) (*Settings, error) { return read(environ, requireAnyPart) }

// ReadOutbound is Read for 'usher exec': outbound must be on. It reads only what a job uses, which has one port of its
// own.
func ReadOutbound(environ []string) (*Settings, error) {
	others := []string{"USHER_LISTEN", "USHER_KEY", "USHER_KEY_FILE"}
	prefixes := []string{"USHER_NOTIFY_", "USHER_PORTS_", "USHER_WEBHOOK_", "USHER_ENTITLEMENTS_", "USHER_ADMIN_"}
	environ = slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		return slices.Contains(others, name) || slices.ContainsFunc(prefixes, begins)
	})
	return read(environ, requireOutbound)
}

func read(environ []string, required func(*Settings, *reader)) (*Settings, error) {
	r := newReader(environ)
	s := new(Settings)
	for _, sec := range s.sections() {
		r.read(sec.rows, "n")
	}
	s.Webhook.receiverIndexes = r.indexes(receiversPrefix)
	s.Webhook.StoreUnclaimed = s.EntitlementsOn() && s.Webhook.Inbox != ""
	s.Admin.NoColour = r.env["NO_COLOR"] != ""
	s.Unknown = r.unknown()
	required(s, r)
	s.Outbound.check(r)
	s.Outbound.readPorts(r)
	s.Admin.check(r)
	s.Webhook.check(r)
	s.Webhook.checkCatchUp(r, s.OutboundOn())
	s.Entitlements.check(r, s)
	checkDistinctAddresses(r, s)
	s.Watched = r.files
	for _, to := range s.Webhook.Receivers.All() {
		to.Secrets = r.secrets
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return s, nil
}

// ReadAdmin reads only the settings that a command needs to call the admin port of a running usher: the user
// who runs the command may not have access to the others. An admin port that is off is a problem here.
func ReadAdmin(environ []string) (*Admin, error) {
	r := newReader(environ)
	a := new(Admin)
	r.read(slices.DeleteFunc(a.variables(), func(v Variable) bool {
		return !strings.HasPrefix(v.Name, "USHER_ADMIN_")
	}), "")
	if a.Listen == "off" {
		r.problem("USHER_ADMIN_LISTEN",
			"is off, so there is no admin port to ask: set it to the address of the admin port of the running usher")
	}
	r.checkListen("USHER_ADMIN_LISTEN", a.Listen)
	r.checkTokens("USHER_ADMIN_TOKEN", a.Token, false) // the running usher decides how long they are
	r.checkTokens("USHER_ADMIN_READ_TOKEN", a.ReadToken, false)
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return a, nil
}

// AdminListen returns the address of the admin port. It reads only this setting, so that a health check does
// not fail because the file of a secret is missing.
func AdminListen(environ []string) string {
	const name = "USHER_ADMIN_LISTEN"
	return cmp.Or(Environment(environ)[name], Default(name))
}

func (a *Admin) check(r *reader) {
	reachable := r.checkListen("USHER_ADMIN_LISTEN", a.Listen)
	if reachable && a.Token == nil {
		r.problem("USHER_ADMIN_LISTEN",
			"is %q, which others can reach: set USHER_ADMIN_TOKEN (or USHER_ADMIN_TOKEN_FILE), "+
				"or listen on 127.0.0.1", a.Listen)
	}
	acting := r.checkTokens("USHER_ADMIN_TOKEN", a.Token, reachable)
	for _, t := range r.checkTokens("USHER_ADMIN_READ_TOKEN", a.ReadToken, reachable) {
		if slices.ContainsFunc(acting, func(o secret.Token) bool { return o.Value == t.Value }) {
			r.problem("USHER_ADMIN_READ_TOKEN",
				"holds a token (not shown) that is also in USHER_ADMIN_TOKEN, so it is not read-only")
		}
	}
	if a.ReadToken != nil && a.Token == nil {
		r.problem("USHER_ADMIN_READ_TOKEN",
			"is set, but USHER_ADMIN_TOKEN is not: without that everybody may read and act")
	}
	r.checkSecret("USHER_NOTIFY_URL", a.NotifyURL, notifyURLProblem)
	if !slices.Contains([]string{"auto", "text", "json"}, a.LogFormat) {
		r.invalid("USHER_LOG_FORMAT", "auto, text or json")
	}
}

// notifyURLProblem says what is wrong with the address of a chat, without the address.
func notifyURLProblem(value string) error {
	u, err := url.Parse(value)
	if err != nil || !isHTTP(u) || u.User != nil || u.Fragment != "" {
		return errors.New("is not an address (not shown) such as https://chat.example.com/hooks/SECRET, " +
			"without user and fragment")
	}
	return nil
}

func (e *Entitlements) check(r *reader, s *Settings) {
	reachable := false
	if e.Listen != "" {
		reachable = r.checkListen("USHER_ENTITLEMENTS_LISTEN", e.Listen)
		if reachable && e.Key == nil && !s.Outbound.Insecure {
			r.problem("USHER_ENTITLEMENTS_LISTEN",
				"is %q, which others can reach, and callers need no key: set USHER_ENTITLEMENTS_KEY (or "+
					"USHER_ENTITLEMENTS_KEY_FILE), or USHER_INSECURE=true if everybody there may ask", e.Listen)
		}
		r.require("USHER_WEBHOOK_INBOX", s.Webhook.Inbox != "",
			"where webhooks are kept, such as file:/var/lib/usher/inbox.db or postgres://user@host/database: "+
				"USHER_ENTITLEMENTS_LISTEN answers from it")
		if s.Webhook.Listen == "off" && s.Webhook.InboxConfig.Address != nil && !s.Webhook.SharedInbox() {
			r.problem("USHER_WEBHOOK_LISTEN",
				"is off, but with a file inbox no other usher can take webhooks in: "+
					"use postgres://user@host/database in USHER_WEBHOOK_INBOX, or set an address")
		}
	}
	r.checkKeys("USHER_ENTITLEMENTS_KEY", e.Key, reachable)
}

// checkDistinctAddresses reports two listeners that have the same address.
func checkDistinctAddresses(r *reader, s *Settings) {
	type listener struct{ variable, address string }
	var all []listener
	for _, p := range s.Outbound.Ports {
		all = append(all, listener{p.Variables.Listen, p.Listen})
	}
	if s.GateOn() {
		all = append(all, listener{"USHER_WEBHOOK_LISTEN", s.Webhook.Listen})
	}
	all = append(all, listener{"USHER_ENTITLEMENTS_LISTEN", s.Entitlements.Listen}, listener{"USHER_ADMIN_LISTEN", s.Admin.Listen})
	for i, l := range all {
		first := slices.IndexFunc(all, func(o listener) bool { return o.address == l.address })
		if first < i && l.address != "" && l.address != "off" && !strings.HasSuffix(l.address, ":0") {
			r.problem(l.variable, "is %q, but should differ from %s", l.address, all[first].variable)
		}
	}
}

// A Part is one of the three things that usher does. A part that is off opens no port, needs no secret, and plays no
// role in readiness.
type Part struct {
	Name string // as in /readyz/NAME
	On   bool
	Off  string // a sentence that says that the part is off, and how to switch it on
}

// Parts returns the three parts: outbound, gate and entitlements.
func (s *Settings) Parts() [3]Part {
	gate := "the webhook gate is off (to switch it on, set USHER_WEBHOOK_FORWARD_URL)"
	if s.Webhook.Listen == "off" {
		gate = "the webhook gate is off (to switch it on, set USHER_WEBHOOK_LISTEN to an address)"
	}
	return [3]Part{
		{"outbound", s.OutboundOn(), "outbound is off (to switch it on, set USHER_BASE_URL)"},
		{"gate", s.GateOn(), gate},
		{"entitlements", s.EntitlementsOn(), "the entitlements port is off (to switch it on, set USHER_ENTITLEMENTS_LISTEN)"},
	}
}

func requireAnyPart(s *Settings, r *reader) {
	var off []string
	for _, part := range s.Parts() {
		if part.On {
			return
		}
		off = append(off, part.Off)
	}
	r.problem("USHER_BASE_URL", "is not set, and no part of usher is on: %s. To try usher without settings, run "+
		"'usher demo'", strings.Join(off, ", "))
}

func requireOutbound(s *Settings, r *reader) {
	r.require("USHER_BASE_URL", s.OutboundOn(),
		"the billing service's base address, such as https://billing.example.com: 'usher exec' is for "+
			"programs that call it")
}
