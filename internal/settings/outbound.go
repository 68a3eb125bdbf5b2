package settings

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"usher/internal/secret"
)

// Outbound has the settings of the billing service and those that all local ports share. This part is on if
// BaseURL is set.
type Outbound struct {
	Port // the main port

	BaseURL                   string
	Insecure, AllowPlainHTTP  bool
	AllowedHosts              []string
	ReplayLimit, ReplayMemory int64
	UpstreamTimeout           time.Duration
	CAFile                    string

	Base  *url.URL                         // BaseURL, parsed
	CA    []byte                           // the content of CAFile
	Proxy func(*url.URL) (*url.URL, error) // from HTTPS_PROXY, HTTP_PROXY and NO_PROXY
}

// Port is a local port. A further port inherits the settings that it does not have from the main port.
type Port struct {
	Name, Listen, Scope, ClientID string
	ClientSecret, Key             *secret.Value

	prefix string // the beginning of the names of its variables
}

// mainPort is the main port's name in logs and metrics.
const mainPort = "main"

// ListenVariable returns the name of the variable that has the port's address.
func (p *Port) ListenVariable() string { return p.prefix + "LISTEN" }

// Endpoint returns the URL of a path below the base address. (URL.JoinPath would return a relative path if
// the base has none, and would clean a prefix that must stay as it is.)
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
	o.Scope = r.cleanScope("USHER_SCOPE", o.Scope)
	for _, host := range o.AllowedHosts {
		if strings.ContainsAny(host, "/ @") || strings.Contains(host, "*") && host != "*" {
			r.invalid("USHER_ALLOWED_HOSTS", "host names or addresses, separated by commas, or * for any")
			break
		}
	}
	if o.CAFile != "" {
		o.CA = r.readCertificates("USHER_CA_FILE", o.CAFile, secret.ReadFile)
	}
}

// proxies reads the usual variables for proxies, and reports an address that cannot be parsed: net/http
// would silently call without a proxy, or take the scheme for the name of the proxy.
func (o *Outbound) proxies(r *reader) func(*url.URL) (*url.URL, error) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		value := r.env[name]
		if !strings.Contains(value, "://") {
			value = "http://" + value
		}
		kinds := []string{"http", "https", "socks5", "socks5h"}
		if u, err := url.Parse(value); o.BaseURL != "" && r.env[name] != "" && (err != nil || u.Hostname() == "" || !slices.Contains(kinds, u.Scheme)) {
			r.problem(name, "can't be read (not shown, as it may hold a password), but should hold a proxy's address, such as http://proxy:3128 or socks5://proxy:1080")
		}
	}
	either := func(name string) string { return cmp.Or(r.env[name], r.env[strings.ToLower(name)]) }
	cfg := httpproxy.Config{
		HTTPProxy: either("HTTP_PROXY"), HTTPSProxy: either("HTTPS_PROXY"), NoProxy: either("NO_PROXY"),
		CGI: r.env["REQUEST_METHOD"] != "",
	}
	return cfg.ProxyFunc()
}

// baseURL parses and checks the service's address, to which usher sends the client secret.
func baseURL(r *reader, value string, plainHTTP bool) *url.URL {
	const name, want = "USHER_BASE_URL", "an address such as https://billing.example.com, without user, query or fragment"
	u, err := url.Parse(value)
	switch {
	case err == nil && u.User != nil, err != nil && strings.Contains(value, "@"):
		r.problem(name, "holds a user name or password (not shown), but should hold "+want)
	case err != nil || u.Hostname() == "" || u.Opaque != "" || !isPortNumber(cmp.Or(u.Port(), "0")):
		r.invalid(name, want)
	case u.Scheme != "https" && u.Scheme != "http", u.RawQuery != "" || u.ForceQuery, u.Fragment != "":
		r.invalid(name, want)
	case u.Scheme == "http" && !isLoopback(u.Hostname()) && !plainHTTP:
		r.invalid(name, "an https address: over plain http the client secret can be read on the way (USHER_ALLOW_PLAIN_HTTP=true if you must)")
	default:
		u.Path = strings.TrimRight(u.Path, "/")
		u.RawPath = strings.TrimRight(u.RawPath, "/")
		return u
	}
	return nil
}

// readPorts returns the local ports. It checks their settings even if outbound is off, but then returns
// none.
func readPorts(r *reader, o *Outbound) []Port {
	o.Name, o.prefix = mainPort, "USHER_"
	ports := []Port{o.Port}
	names := map[string]string{mainPort: "the main port"}
	for _, index := range r.indexes(portsPrefix) {
		p := Port{prefix: portsPrefix + index + "_"}
		r.read(p.variables(), index)
		r.require(p.prefix+"LISTEN", p.Listen != "" || o.BaseURL == "", "the port's address, such as 127.0.0.1:8081")
		if p.Scope != "" {
			p.Scope = r.cleanScope(p.prefix+"SCOPE", p.Scope)
		} else {
			p.Scope = o.Scope
		}
		p.ClientID = cmp.Or(p.ClientID, o.ClientID)
		p.ClientSecret = cmp.Or(p.ClientSecret, o.ClientSecret)
		p.Key = cmp.Or(p.Key, o.Key)
		p.Name = r.uniqueName(names, p.prefix, p.Name, index)
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
	reachable := r.checkListen(p.prefix+"LISTEN", p.Listen)
	if reachable && p.Key == nil && !o.Insecure && o.BaseURL != "" {
		r.problem(p.prefix+"LISTEN", "is %q, which others can reach, and callers need no key: set %sKEY (or %sKEY_FILE), or USHER_INSECURE=true if everybody there may act in your name",
			p.Listen, p.prefix, p.prefix)
	}
	name := p.prefix + "KEY"
	if p.Key == o.Key {
		name = "USHER_KEY" // the main port's own, or inherited from it
	}
	r.checkKeys(name, p.Key, reachable)
}

// IdentityVariables returns the names of the variables that p has its client and scope from: its own, or the
// main port's if it inherits them, and with _FILE if the secret is in a file.
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
