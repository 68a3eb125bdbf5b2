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

	"usher/internal/admin"
	"usher/internal/guard"
	"usher/internal/settings"
	"usher/internal/wire"
	"usher/proxy"
	"usher/tokens"
)

// outbound is the way to the billing service: a pool of connections, and one
// token source for each identity among the ports.
type outbound struct {
	settings  *settings.Settings
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

func identityOf(p settings.Port) identity {
	scopes := strings.Fields(p.Scope)
	slices.Sort(scopes)
	id := identity{clientID: p.ClientID, file: p.ClientSecret.Path(), scope: strings.Join(scopes, " ")}
	if id.file == "" {
		id.secret = p.ClientSecret.Get()
	}
	return id
}

func newOutbound(s *settings.Settings, log *slog.Logger, metrics *admin.Metrics) (*outbound, error) {
	o := &outbound{
		settings: s, log: log,
		target:  s.Outbound.Endpoint("/graphql"),
		memory:  proxy.NewMemory(int64(s.Outbound.ReplayMemory)),
		of:      make(map[string]*tokens.Source),
		clients: make(map[string]*tokens.Client),
		figures: make(map[string]portFigures),
	}
	if err := o.connect(); err != nil {
		return nil, err
	}
	shared := make(map[identity]*tokens.Source)
	counted := make(map[identity]portFigures)
	for _, p := range s.Ports {
		id := identityOf(p)
		client := &tokens.Client{
			URL:       s.Outbound.Endpoint("/oauth/token").String(),
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

// connect sets up the connections.
func (o *outbound) connect() error {
	cfg := wire.Config{Timeout: o.settings.Outbound.UpstreamTimeout, Proxy: o.settings.Outbound.Proxy}
	if ca := o.settings.Outbound.CA; ca != nil {
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
func (o *outbound) handler(p settings.Port) http.Handler {
	cfg := proxy.Config{
		Name:         p.Name,
		Target:       o.target,
		Source:       o.of[p.Name],
		Upstream:     o.upstream,
		Key:          p.Key.Getter(),
		ReplayLimit:  int64(o.settings.Outbound.ReplayLimit),
		ReplayMemory: o.memory,
		Hosts:        guard.NewHosts(p.Listen, o.settings.Outbound.AllowedHosts, p.Key != nil),
		Log:          o.log,
	}
	if m := o.figures[p.Name].calls; m != nil {
		cfg.Started, cfg.Finished, cfg.Replayed = m.Started, m.Finished, m.Replayed
	}
	return proxy.New(cfg)
}
