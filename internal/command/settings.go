package command

import (
	"cmp"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"usher/internal/secret"
)

// Settings is everything that the environment says. The tags name the variables
// and their defaults, once: what is known, what the README must list and what a
// misspelt name is compared with all come from here. A secret is also read from
// the file that its name with _FILE gives.
type Settings struct {
	Outbound Outbound
	Ports    []Port // the main port first, then USHER_PORTS_0_…, USHER_PORTS_1_…; none when outbound is off
	Webhook  Webhook
	Admin    Admin

	Entitlements Entitlements

	// Unknown are USHER_ variables that nobody knows and that look like no slip.
	Unknown []string
	// Unused are those of a part that is off.
	Unused []Unused
}

// Outbound is the billing service, and what all local ports share. It is on when BaseURL
// is set.
type Outbound struct {
	BaseURL         string        `env:"USHER_BASE_URL"`
	ClientID        string        `env:"USHER_CLIENT_ID"`
	ClientSecret    *secret.Value `secret:"USHER_CLIENT_SECRET"`
	Scope           string        `env:"USHER_SCOPE" envDefault:"standard:read standard:write"`
	Listen          string        `env:"USHER_LISTEN" envDefault:"127.0.0.1:8080"`
	Key             *secret.Value `secret:"USHER_KEY"`
	Insecure        bool          `env:"USHER_INSECURE" envDefault:"false"`
	AllowedHosts    list          `env:"USHER_ALLOWED_HOSTS"`
	AllowPlainHTTP  bool          `env:"USHER_ALLOW_PLAIN_HTTP" envDefault:"false"`
	ReplayLimit     size          `env:"USHER_REPLAY_LIMIT" envDefault:"1MiB"`
	ReplayMemory    size          `env:"USHER_REPLAY_MEMORY" envDefault:"32MiB"`
	UpstreamTimeout time.Duration `env:"USHER_UPSTREAM_TIMEOUT" envDefault:"60s"`
	CAFile          string        `env:"USHER_CA_FILE"`

	base *url.URL // of BaseURL
	ca   []byte   // of CAFile
}

// Port is a local port. What is not given of a further one is the main port's.
type Port struct {
	Name         string        `env:"NAME"`
	Listen       string        `env:"LISTEN"`
	Scope        string        `env:"SCOPE"`
	ClientID     string        `env:"CLIENT_ID"`
	ClientSecret *secret.Value `secret:"CLIENT_SECRET"`
	Key          *secret.Value `secret:"KEY"`

	prefix string // of its variables
}

// Admin is the admin port, the log and the end.
type Admin struct {
	Listen        string        `env:"USHER_ADMIN_LISTEN" envDefault:"127.0.0.1:9095"`
	Token         *secret.Value `secret:"USHER_ADMIN_TOKEN"`
	LogLevel      string        `env:"USHER_LOG_LEVEL" envDefault:"info"`
	LogFormat     string        `env:"USHER_LOG_FORMAT" envDefault:"auto"`
	ShutdownDelay time.Duration `env:"USHER_SHUTDOWN_DELAY" envDefault:"0s"`
	ShutdownGrace time.Duration `env:"USHER_SHUTDOWN_GRACE" envDefault:"15s"`

	level    slog.Level // of LogLevel
	noColour bool       // NO_COLOR is set, see https://no-color.org
}

// mainPort is the main port's name in logs and metrics.
const mainPort = "main"

// readSettings makes settings of the environment, or says everything that is
// wrong with it. A value that can't be read is wrong also where its part is off.
func readSettings(environ []string) (*Settings, error) { return readSettingsFor(environ, needAny) }

func readSettingsFor(environ []string, needed need) (*Settings, error) {
	r := newReader(environ)
	s := new(Settings)
	r.section("", &s.Outbound)
	r.section("", &s.Webhook)
	s.Webhook.further = len(r.indexes(receiverIndex)) > 0
	r.section("", &s.Entitlements)
	s.Webhook.keeps = s.entitlementsOn() && s.Webhook.Inbox != ""
	r.section("", &s.Admin)
	s.Admin.noColour = r.env["NO_COLOR"] != ""
	s.Unknown = r.unknown()
	s.Unused = s.unused(r)
	needed(s, r)
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

func (o *Outbound) check(r *reader) {
	if o.BaseURL != "" {
		o.base = baseURL(r, o.BaseURL, o.AllowPlainHTTP)
		r.require("USHER_CLIENT_ID", o.ClientID != "", "the Client ID of the API client application")
		r.require("USHER_CLIENT_SECRET", o.ClientSecret != nil, "the Client Secret of the API client application; USHER_CLIENT_SECRET_FILE can name a file that has it")
		checkProxies(r)
	}
	o.Scope = r.scope("USHER_SCOPE", o.Scope)
	if o.UpstreamTimeout <= 0 {
		r.invalid("USHER_UPSTREAM_TIMEOUT", "a duration above zero, such as 60s")
	}
	for _, host := range o.AllowedHosts {
		if strings.ContainsAny(host, "/ @") || strings.Contains(host, "*") && host != "*" {
			r.invalid("USHER_ALLOWED_HOSTS", "host names or addresses, separated by commas, or * for any")
			break
		}
	}
	if o.CAFile != "" {
		o.ca = r.certificates("USHER_CA_FILE", o.CAFile)
	}
}

func checkProxies(r *reader) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		if value := r.env[name]; value != "" && !isProxy(value) {
			r.problem(name, "can't be read (not shown, as it may hold a password), but should hold a proxy's address, such as http://proxy:3128")
		}
	}
}

// baseURL checks the service's address: the client secret goes there.
func baseURL(r *reader, value string, plainHTTP bool) *url.URL {
	const name, want = "USHER_BASE_URL", "an address such as https://billing.example.com, without user, query or fragment"
	u, err := url.Parse(value)
	switch {
	case err == nil && u.User != nil, err != nil && strings.Contains(value, "@"):
		r.problem(name, "holds a user name or password (not shown), but should hold "+want)
	case err != nil || u.Hostname() == "" || u.Opaque != "":
		r.invalid(name, want)
	case u.Scheme != "https" && u.Scheme != "http", u.RawQuery != "" || u.ForceQuery, u.Fragment != "":
		r.invalid(name, want)
	case u.Scheme == "http" && !loopbackHost(u.Hostname()) && !plainHTTP:
		r.invalid(name, "an https address: over plain http the client secret can be read on the way (USHER_ALLOW_PLAIN_HTTP=true if you must)")
	default:
		u.Path = strings.TrimRight(u.Path, "/")
		u.RawPath = strings.TrimRight(u.RawPath, "/")
		return u
	}
	return nil
}

// isProxy: as net/http takes it, with or without a scheme. One that it can't read it
// would pass over, and go without.
func isProxy(value string) bool {
	u, err := url.Parse(value)
	if err != nil || u.Scheme == "" || u.Host == "" {
		u, err = url.Parse("http://" + value)
	}
	return err == nil && u.Hostname() != ""
}

// readPorts returns the ports; none when outbound is off, but what is set for them is
// read all the same.
func readPorts(r *reader, o *Outbound) []Port {
	ports := []Port{{
		Name: mainPort, Listen: o.Listen, Scope: o.Scope, ClientID: o.ClientID,
		ClientSecret: o.ClientSecret, Key: o.Key, prefix: "USHER_",
	}}
	names := map[string]string{mainPort: "the main port"}
	for _, index := range r.indexes(portIndex) {
		p := readPort(r, index, o, &ports[0])
		if other, taken := names[p.Name]; taken {
			r.problem(p.prefix+"NAME", "is %q, but should differ from the name of %s", p.Name, other)
		}
		names[p.Name] = p.prefix + "…"
		ports = append(ports, p)
	}
	for _, p := range ports {
		p.check(r, o)
	}
	if o.BaseURL == "" {
		return nil
	}
	return ports
}

// readPort reads a further port. What is not given is the main port's.
func readPort(r *reader, index string, o *Outbound, main *Port) Port {
	p := Port{prefix: "USHER_PORTS_" + index + "_"}
	r.section(p.prefix, &p)
	p.Name = cmp.Or(p.Name, index)
	if !shortName(p.Name) {
		r.invalid(p.prefix+"NAME", "a short name without white space")
	}
	r.require(p.prefix+"LISTEN", p.Listen != "" || o.BaseURL == "", "the port's address, such as 127.0.0.1:8081")
	if p.Scope != "" {
		p.Scope = r.scope(p.prefix+"SCOPE", p.Scope)
	} else {
		p.Scope = main.Scope
	}
	p.ClientID = cmp.Or(p.ClientID, main.ClientID)
	p.ClientSecret = cmp.Or(p.ClientSecret, main.ClientSecret)
	p.Key = cmp.Or(p.Key, main.Key)
	return p
}

func (p *Port) check(r *reader, o *Outbound) {
	if p.Listen == "" {
		return // said already
	}
	loopback, ok := r.listen(p.prefix+"LISTEN", p.Listen)
	if ok && !loopback && p.Key == nil && !o.Insecure && o.BaseURL != "" {
		r.problem(p.prefix+"LISTEN", "is %q, which others can reach, and callers need no key: set %sKEY (or %sKEY_FILE), or USHER_INSECURE=true if everybody there may act in your name",
			p.Listen, p.prefix, p.prefix)
	}
	name := p.prefix + "KEY"
	if p.Key == o.Key {
		name = "USHER_KEY" // its own, or inherited
	}
	r.keys(name, p.Key, ok && !loopback)
}

func (a *Admin) check(r *reader) {
	if a.Listen != "off" {
		loopback, ok := r.listen("USHER_ADMIN_LISTEN", a.Listen)
		if ok && !loopback && a.Token == nil {
			r.problem("USHER_ADMIN_LISTEN", "is %q, which others can reach: set USHER_ADMIN_TOKEN (or USHER_ADMIN_TOKEN_FILE), or listen on 127.0.0.1", a.Listen)
		}
	}
	r.headerSafe("USHER_ADMIN_TOKEN", a.Token)
	if err := a.level.UnmarshalText([]byte(a.LogLevel)); err != nil {
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
	if s.gateOn() {
		see("USHER_WEBHOOK_LISTEN", s.Webhook.Listen)
	}
	see("USHER_ENTITLEMENTS_LISTEN", s.Entitlements.Listen)
	see("USHER_ADMIN_LISTEN", s.Admin.Listen)
}

// namesOf returns the variables that the identity of p comes from: its own, or the main
// port's where it is inherited; with _FILE where the secret is in a file.
func (s *Settings) namesOf(p Port) (clientID, clientSecret, scope string) {
	of := func(name string, inherited bool) string {
		if inherited {
			return s.Ports[0].prefix + name
		}
		return p.prefix + name
	}
	clientSecret = of("CLIENT_SECRET", p.ClientSecret == s.Outbound.ClientSecret)
	if p.ClientSecret.Path() != "" {
		clientSecret += "_FILE"
	}
	return of("CLIENT_ID", p.ClientID == s.Outbound.ClientID), clientSecret, of("SCOPE", p.Scope == s.Outbound.Scope)
}
