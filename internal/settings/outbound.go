package settings

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"usher/internal/outbound"
)

// mainPort is the main port's name in logs and metrics.
const mainPort = "main"

func (o *Outbound) check(r *reader) {
	if o.BaseURL != "" {
		o.Base = baseURL(r, o.BaseURL, o.AllowPlainHTTP)
		r.require("USHER_CLIENT_ID", o.main.ClientID != "", "the Client ID of the API client application")
		r.require("USHER_CLIENT_SECRET", o.main.ClientSecret != nil,
			"the Client Secret of the API client application; USHER_CLIENT_SECRET_FILE can name a file that has it")
	}
	o.Proxy = o.proxies(r)
	o.main.Scope = r.cleanScope("USHER_SCOPE", o.main.Scope)
	for _, host := range o.AllowedHosts {
		if strings.ContainsAny(host, "/ @") || strings.Contains(host, "*") && host != "*" {
			r.invalid("USHER_ALLOWED_HOSTS", "host names or addresses, separated by commas, or * for any")
			break
		}
	}
}

// proxies reads the usual variables for proxies, and reports an address that cannot be parsed: net/http
// would silently call without a proxy, or take the scheme for the name of the proxy.
func (o *Outbound) proxies(r *reader) func(*url.URL) (*url.URL, error) {
	used := o.BaseURL != "" || r.env["USHER_NOTIFY_URL"] != "" || r.env["USHER_NOTIFY_URL_FILE"] != ""
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		value := r.env[name]
		if !used || value == "" {
			continue
		}
		if !strings.Contains(value, "://") {
			value = "http://" + value
		}
		kinds := []string{"http", "https", "socks5", "socks5h"}
		if u, err := url.Parse(value); err != nil || u.Hostname() == "" || !slices.Contains(kinds, u.Scheme) {
			r.problem(name,
				"can't be read (not shown, as it may hold a password), but should hold a proxy's address, "+
					"such as http://proxy:3128 or socks5://proxy:1080")
		}
	}
	either := func(name string) string { return cmp.Or(r.env[name], r.env[strings.ToLower(name)]) }
	cfg := httpproxy.Config{
		HTTPProxy: either("HTTP_PROXY"), HTTPSProxy: either("HTTPS_PROXY"), NoProxy: either("NO_PROXY"),
	}
	return cfg.ProxyFunc()
}

// baseURL parses and checks the service's address, to which usher sends the client secret.
func baseURL(r *reader, value string, plainHTTP bool) *url.URL {
	const name = "USHER_BASE_URL"
	const want = "an address such as https://billing.example.com, without user, query or fragment"
	u, err := url.Parse(value)
	switch {
	case err == nil && u.User != nil, err != nil && strings.Contains(value, "@"):
		r.problem(name, "holds a user name or password (not shown), but should hold "+want)
	case err != nil || u.Hostname() == "" || u.Opaque != "" || !isPortNumber(cmp.Or(u.Port(), "0")):
		r.invalid(name, want)
	case u.Scheme != "https" && u.Scheme != "http", u.RawQuery != "" || u.ForceQuery, u.Fragment != "":
		r.invalid(name, want)
	case u.Scheme == "http" && !isLoopback(u.Hostname()) && !plainHTTP:
		r.invalid(name,
			"an https address: over plain http the client secret can be read on the way "+
				"(USHER_ALLOW_PLAIN_HTTP=true if you must)")
	default:
		u.Path = strings.TrimRight(u.Path, "/")
		u.RawPath = strings.TrimRight(u.RawPath, "/")
		return u
	}
	return nil
}

// readPorts sets the local ports: first the main one, then USHER_PORTS_0_…, USHER_PORTS_1_…. These inherit what
// they do not have. It checks the settings even if outbound is off, but then sets none.
func (o *Outbound) readPorts(r *reader) {
	main := &o.main
	main.Name = mainPort
	ports := []*outbound.Port{main}
	names := map[string]string{mainPort: "the main port"}
	o.checkPort(r, main, "USHER_")
	for _, index := range r.indexes(portsPrefix) {
		prefix := portsPrefix + index + "_"
		p := new(outbound.Port)
		r.read(portVariables(p), index)
		r.require(prefix+"LISTEN", p.Listen != "" || o.BaseURL == "", "the port's address, such as 127.0.0.1:8081")
		if p.Scope != "" {
			p.Scope = r.cleanScope(prefix+"SCOPE", p.Scope)
		}
		p.Name = r.uniqueName(names, prefix, p.Name, index)
		o.checkPort(r, p, prefix)
		ports = append(ports, p)
	}
	if o.BaseURL != "" {
		o.Main, o.Ports = main, ports
	}
	if main.Listen == "off" {
		o.Ports = slices.DeleteFunc(o.Ports, func(p *outbound.Port) bool { return p == main })
	}
}

// checkPort checks a port whose variables begin with prefix, and has it inherit from the main port what it does not
// have. It notes where each value comes from, for advice.
func (o *Outbound) checkPort(r *reader, p *outbound.Port, prefix string) {
	v, key := &p.Variables, ""
	v.Listen = prefix + "LISTEN"
	p.Scope, v.Scope = inherit(p.Scope, o.main.Scope, prefix, "SCOPE")
	p.ClientID, v.ClientID = inherit(p.ClientID, o.main.ClientID, prefix, "CLIENT_ID")
	p.ClientSecret, v.ClientSecret = inherit(p.ClientSecret, o.main.ClientSecret, prefix, "CLIENT_SECRET")
	p.Key, key = inherit(p.Key, o.main.Key, prefix, "KEY")
	if p.ClientSecret.Path() != "" {
		v.ClientSecret += "_FILE"
	}
	if p.Listen == "" {
		return // already reported
	}
	reachable := r.checkListen(v.Listen, p.Listen)
	if reachable && p.Key == nil && !o.Insecure && o.BaseURL != "" {
		r.problem(v.Listen,
			"is %q, which others can reach, and callers need no key: set %sKEY (or %sKEY_FILE), "+
				"or USHER_INSECURE=true if everybody there may act in your name", p.Listen, prefix, prefix)
	}
	r.checkKeys(key, p.Key, reachable)
}

// inherit returns a port's own value or, if it has none, the main port's, and the variable that has it.
func inherit[T comparable](own, mains T, prefix, name string) (value T, variable string) {
	var none T
	if own != none {
		return own, prefix + name
	}
	return mains, "USHER_" + name
}
