package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http/httpproxy"

	"usher/internal/admin"
	"usher/internal/guard"
	"usher/internal/wire"
	"usher/proxy"
	"usher/tokens"
)

// outbound is the way to the billing service: a pool of connections, and one
// token source for each identity among the ports.
type outbound struct {
	settings  *Settings
	log       *slog.Logger
	upstream  *wire.Client
	forTokens *wire.Client // upstream too, unless calls have less time than tokens
	target    *url.URL
	memory    *proxy.Memory             // for the bodies of all ports
	sources   []*tokens.Source          // each once
	of        map[string]*tokens.Source // by the port's name
	clients   map[string]*tokens.Client // by the port's name
	figures   map[string]portFigures    // by the port's name; empty without metrics
}

// portFigures are a port's own, and those of its token.
type portFigures struct {
	calls    *admin.Port
	identity *admin.Identity
	owner    string // the first port of the identity
}

// identity is what makes two ports share a token. A secret that is in a file is known by
// that: two files may hold the same today, and only one of them change tomorrow.
type identity struct{ clientID, file, secret, scope string }

func identityOf(p Port) identity {
	scopes := strings.Fields(p.Scope)
	slices.Sort(scopes)
	id := identity{clientID: p.ClientID, file: p.ClientSecret.Path(), scope: strings.Join(scopes, " ")}
	if id.file == "" {
		id.secret = p.ClientSecret.Get()
	}
	return id
}

func newOutbound(s *Settings, environ []string, log *slog.Logger, metrics *admin.Metrics) (*outbound, error) {
	o := &outbound{
		settings: s, log: log,
		target:  endpoint(s.Outbound.base, "/graphql"),
		memory:  proxy.NewMemory(int64(s.Outbound.ReplayMemory)),
		of:      make(map[string]*tokens.Source),
		clients: make(map[string]*tokens.Client),
		figures: make(map[string]portFigures),
	}
	if err := o.connect(environ); err != nil {
		return nil, err
	}
	shared := make(map[identity]*tokens.Source)
	counted := make(map[identity]portFigures)
	for _, p := range s.Ports {
		id := identityOf(p)
		client := &tokens.Client{
			URL:       endpoint(s.Outbound.base, "/oauth/token").String(),
			ID:        p.ClientID,
			Secret:    p.ClientSecret.Get,
			Scope:     p.Scope,
			HTTP:      o.forTokens,
			UserAgent: userAgent(),
		}
		o.clients[p.Name] = client
		if shared[id] == nil {
			source := tokens.NewSource(client, log.With("port", p.Name))
			source.Advice = func(err error) string { return o.advise(err, p) }
			if metrics != nil {
				m := metrics.Identity(p.Name)
				source.Fetched, source.EarlyRevoked = m.Fetched, m.EarlyRevoked
				counted[id] = portFigures{identity: m, owner: p.Name}
			}
			p.ClientSecret.OnChange(source.SecretChanged)
			shared[id] = source
			o.sources = append(o.sources, source)
		}
		o.of[p.Name] = shared[id]
		if metrics != nil {
			figures := counted[id]
			figures.calls = metrics.Port(p.Name)
			o.figures[p.Name] = figures
		}
	}
	return o, nil
}

// endpoint is a path below the base address. (URL.JoinPath would make a relative
// path of a base without one, and clean a prefix that has to stay as it is.)
func endpoint(base *url.URL, path string) *url.URL {
	u := *base
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	return &u
}

// connect sets up the connections.
func (o *outbound) connect(environ []string) error {
	env := newReader(environ).env
	either := func(name string) string {
		if v := env[name]; v != "" {
			return v
		}
		return env[strings.ToLower(name)]
	}
	cfg := wire.Config{Timeout: o.settings.Outbound.UpstreamTimeout}
	cfg.Proxy = (&httpproxy.Config{
		HTTPProxy: either("HTTP_PROXY"), HTTPSProxy: either("HTTPS_PROXY"), NoProxy: either("NO_PROXY"),
		CGI: env["REQUEST_METHOD"] != "",
	}).ProxyFunc()
	if ca := o.settings.Outbound.ca; ca != nil {
		roots, err := x509.SystemCertPool()
		if err != nil {
			return err
		}
		roots.AppendCertsFromPEM(ca)
		cfg.TLS = &tls.Config{RootCAs: roots}
	}
	o.upstream = proxy.NewUpstream(cfg)
	o.forTokens = o.upstream
	if cfg.Timeout < tokens.FetchTimeout {
		// The time that somebody gives to calls may be too short for tokens, and then
		// there would never be one.
		cfg.Timeout = tokens.FetchTimeout
		o.forTokens = proxy.NewUpstream(cfg)
	}
	return nil
}

// run keeps the tokens fresh until ctx ends, and returns when everything it started has
// ended.
func (o *outbound) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, source := range o.sources {
		running.Go(func() { source.Run(ctx) })
	}
	running.Wait()
	o.upstream.CloseIdleConnections()
	o.forTokens.CloseIdleConnections()
}

// handler returns the handler of a local port.
func (o *outbound) handler(p Port) http.Handler {
	cfg := proxy.Config{
		Name:         p.Name,
		Target:       o.target,
		Source:       o.of[p.Name],
		Upstream:     o.upstream,
		ReplayLimit:  int64(o.settings.Outbound.ReplayLimit),
		ReplayMemory: o.memory,
		Hosts:        guard.NewHosts(p.Listen, o.settings.Outbound.AllowedHosts, p.Key != nil),
		Log:          o.log,
	}
	if p.Key != nil {
		cfg.Key = p.Key.Get
	}
	if m := o.figures[p.Name].calls; m != nil {
		cfg.Started, cfg.Finished, cfg.Replayed = m.Started, m.Finished, m.Replayed
	}
	return proxy.New(cfg)
}
