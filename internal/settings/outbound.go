package settings

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"usher/internal/secret"
)

// Outbound is the billing service, and what all local ports share. It is on when BaseURL
// is set.
type Outbound struct {
	Port // the main port

	BaseURL                   string
	Insecure, AllowPlainHTTP  bool
	AllowedHosts              []string
	ReplayLimit, ReplayMemory int64
	UpstreamTimeout           time.Duration
	CAFile                    string

	Base  *url.URL                         // of BaseURL
	CA    []byte                           // of CAFile
	Proxy func(*url.URL) (*url.URL, error) // of HTTPS_PROXY, HTTP_PROXY and NO_PROXY
}

// Port is a local port. A further port inherits from the main port what is not given.
type Port struct {
	Name, Listen, Scope, ClientID string
	ClientSecret, Key             *secret.Value

	prefix string // of its variables
}

// mainPort is the main port's name in logs and metrics.
const mainPort = "main"

// ListenVariable is the variable that says where the port listens.
func (p *Port) ListenVariable() string { return p.prefix + "LISTEN" }

// Endpoint is a path below the base address. (URL.JoinPath would make a relative path of a
// base without one, and clean a prefix that has to stay as it is.)
func (o *Outbound) Endpoint(path string) *url.URL {
	u := *o.Base
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	return &u
}

func (o *Outbound) check(r *reader) {
	if o.BaseURL != "" {
		o.Base = baseURL(r, o.BaseURL, o.AllowPlainHTTP)
		r.require("USHER_CLIENT_ID", o.ClientID != "", "the Client ID of the API client application")
		r.require("USHER_CLIENT_SECRET", o.ClientSecret != nil, "the Client Secret of the API client application; USHER_CLIENT_SECRET_FILE can name a file that has it")
	}
	o.Proxy = o.proxies(r)
	o.Scope = r.scope("USHER_SCOPE", o.Scope)
	for _, host := range o.AllowedHosts {
		if strings.ContainsAny(host, "/ @") || strings.Contains(host, "*") && host != "*" {
			r.invalid("USHER_ALLOWED_HOSTS", "host names or addresses, separated by commas, or * for any")
			break
		}
	}
	if o.CAFile != "" {
		o.CA = r.certificates("USHER_CA_FILE", o.CAFile)
	}
}

// proxies reads the usual variables for proxies. net/http ignores an address that it cannot read, and
// then calls without a proxy, or takes the scheme for the proxy's name: so that is a problem.
func (o *Outbound) proxies(r *reader) func(*url.URL) (*url.URL, error) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		value := r.env[name]
		if !strings.Contains(value, "://") {
			value = "http://" + value
		}
		if u, err := url.Parse(value); o.BaseURL != "" && r.env[name] != "" && (err != nil || u.Hostname() == "") {
			r.problem(name, "can't be read (not shown, as it may hold a password), but should hold a proxy's address, such as http://proxy:3128")
		}
	}
	either := func(name string) string { return cmp.Or(r.env[name], r.env[strings.ToLower(name)]) }
	cfg := httpproxy.Config{
		HTTPProxy: either("HTTP_PROXY"), HTTPSProxy: either("HTTPS_PROXY"), NoProxy: either("NO_PROXY"),
		CGI: r.env["REQUEST_METHOD"] != "",
	}
	return cfg.ProxyFunc()
}

// baseURL checks the service's address: the client secret goes there.
func baseURL(r *reader, value string, plainHTTP bool) *url.URL {
	const name, want = "USHER_BASE_URL", "an address such as https://billing.example.com, without user, query or fragment"
	u, err := url.Parse(value)
	switch {
	case err == nil && u.User != nil, err != nil && strings.Contains(value, "@"):
		r.problem(name, "holds a user name or password (not shown), but should hold "+want)
	case err != nil || u.Hostname() == "" || u.Opaque != "" || !portNumber(cmp.Or(u.Port(), "0")):
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

// readPorts returns the ports. When outbound is off there are none, but readPorts checks
// their settings all the same.
func readPorts(r *reader, o *Outbound) []Port {
	o.Name, o.prefix = mainPort, "USHER_"
	ports := []Port{o.Port}
	names := map[string]string{mainPort: "the main port"}
	for _, index := range r.indexes(portsPrefix) {
		p := Port{prefix: portsPrefix + index + "_"}
		r.read(p.variables(), index)
		r.require(p.prefix+"LISTEN", p.Listen != "" || o.BaseURL == "", "the port's address, such as 127.0.0.1:8081")
		if p.Scope != "" {
			p.Scope = r.scope(p.prefix+"SCOPE", p.Scope)
		} else {
			p.Scope = o.Scope
		}
		p.ClientID = cmp.Or(p.ClientID, o.ClientID)
		p.ClientSecret = cmp.Or(p.ClientSecret, o.ClientSecret)
		p.Key = cmp.Or(p.Key, o.Key)
		p.Name = r.name(names, p.prefix, p.Name, index)
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

func (p *Port) check(r *reader, o *Outbound) {
	if p.Listen == "" {
		return // already reported
	}
	reachable := r.listen(p.prefix+"LISTEN", p.Listen)
	if reachable && p.Key == nil && !o.Insecure && o.BaseURL != "" {
		r.problem(p.prefix+"LISTEN", "is %q, which others can reach, and callers need no key: set %sKEY (or %sKEY_FILE), or USHER_INSECURE=true if everybody there may act in your name",
			p.Listen, p.prefix, p.prefix)
	}
	name := p.prefix + "KEY"
	if p.Key == o.Key {
		name = "USHER_KEY" // the main port's own, or inherited from it
	}
	r.keys(name, p.Key, reachable)
}

// IdentityVariables names the variables that the identity of p comes from: its own, or the
// main port's where it inherits them; with _FILE where the secret is in a file.
func (s *Settings) IdentityVariables(p *Port) (clientID, clientSecret, scope string) {
	variable := func(name string, inherited bool) string {
		if inherited {
			return s.Ports[0].prefix + name
		}
		return p.prefix + name
	}
	clientSecret = variable("CLIENT_SECRET", p.ClientSecret == s.Outbound.ClientSecret)
	if p.ClientSecret.Path() != "" {
		clientSecret += "_FILE"
	}
	return variable("CLIENT_ID", p.ClientID == s.Outbound.ClientID), clientSecret, variable("SCOPE", p.Scope == s.Outbound.Scope)
}
