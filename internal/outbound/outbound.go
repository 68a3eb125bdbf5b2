// Package outbound is the way to the billing service, put together from the settings: a pool of
// connections, the local ports, and one token for each identity among them. usher serves the
// ports, 'usher exec' opens one of its own, and 'usher check' tries them.
package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"usher/internal/admin/metrics"
	"usher/internal/guard"
	"usher/internal/settings"
	"usher/internal/version"
	"usher/internal/wire"
	"usher/proxy"
	"usher/tokens"
)

// Outbound is all of it.
type Outbound struct {
	Ports []*Port // as the settings have them, the main port first

	settings   *settings.Settings
	log        *slog.Logger
	upstream   *wire.Client
	forTokens  *wire.Client // upstream too, unless calls have less time than tokens
	target     *url.URL
	memory     *proxy.Memory // for the bodies of all ports
	identities []*Identity
	cutOff     atomic.Bool // what is still under way is being cut off
}

// Port is a local port and what it calls the service with.
type Port struct {
	settings.Port
	*Identity
	Calls *metrics.Port // nil without metrics
}

// Identity is what usher gets a token for: an API client and its scopes. Ports with the same
// identity share it.
type Identity struct {
	Owner  string // the first port that has it
	Client *tokens.Client
	Source *tokens.Source
	Counts *metrics.Identity // nil without metrics
}

// identityKey says whether two ports have the same identity. A secret in a file is known by
// its path: two files may hold the same today, and only one of them change tomorrow.
type identityKey struct{ clientID, file, secret, scope string }

func keyOf(p *settings.Port) identityKey {
	scopes := strings.Fields(p.Scope)
	slices.Sort(scopes)
	key := identityKey{clientID: p.ClientID, file: p.ClientSecret.Path(), scope: strings.Join(scopes, " ")}
	if key.file == "" {
		key.secret = p.ClientSecret.Get()
	}
	return key
}

// New builds it; metrics may be nil.
func New(s *settings.Settings, log *slog.Logger, metrics *metrics.Registry) (*Outbound, error) {
	o := &Outbound{
		settings: s, log: log,
		target: s.Outbound.Endpoint("/graphql"),
		memory: proxy.NewMemory(int64(s.Outbound.ReplayMemory)),
	}
	if err := o.connect(); err != nil {
		return nil, err
	}
	byKey := make(map[identityKey]*Identity)
	for i := range s.Ports {
		p := &s.Ports[i]
		id := byKey[keyOf(p)]
		if id == nil {
			id = o.newIdentity(p, metrics)
			byKey[keyOf(p)] = id
			o.identities = append(o.identities, id)
		}
		port := &Port{Port: *p, Identity: id}
		if metrics != nil {
			port.Calls = metrics.Port(p.Name)
		}
		o.Ports = append(o.Ports, port)
	}
	return o, nil
}

// newIdentity makes the identity of p, the first port that has it.
func (o *Outbound) newIdentity(p *settings.Port, metrics *metrics.Registry) *Identity {
	client := &tokens.Client{
		URL:       o.settings.Outbound.Endpoint("/oauth/token").String(),
		ID:        p.ClientID,
		Secret:    p.ClientSecret.Get,
		Scope:     p.Scope,
		HTTP:      o.forTokens,
		UserAgent: version.UserAgent(),
	}
	id := &Identity{Owner: p.Name, Client: client, Source: tokens.NewSource(client, o.log.With("port", p.Name))}
	id.Source.Advice = func(err error) string { return o.Advise(err, p) }
	if metrics != nil {
		id.Counts = metrics.Identity(p.Name)
		id.Source.Fetched, id.Source.EarlyRevoked = id.Counts.Fetched, id.Counts.EarlyRevoked
	}
	p.ClientSecret.OnChange(id.Source.SecretChanged)
	return id
}

// connect sets up the connections.
func (o *Outbound) connect() error {
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
		// A timeout for calls may be too short for tokens, and then usher would never get one.
		cfg.Timeout = tokens.FetchTimeout
		o.forTokens = proxy.NewUpstream(cfg)
	}
	return nil
}

// Run keeps the tokens fresh until ctx ends, and returns when everything it started has
// ended.
func (o *Outbound) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, id := range o.identities {
		running.Go(func() { id.Source.Run(ctx) })
	}
	running.Wait()
	o.upstream.CloseIdleConnections()
	o.forTokens.CloseIdleConnections()
}

// CutOff has the log say of calls that end from now on that usher cut them off.
func (o *Outbound) CutOff() { o.cutOff.Store(true) }

// Handler returns the handler of a local port.
func (o *Outbound) Handler(p *Port) http.Handler {
	cfg := proxy.Config{
		Name:         p.Name,
		Target:       o.target,
		Source:       p.Source,
		Upstream:     o.upstream,
		Key:          p.Key.Getter(),
		ReplayLimit:  int64(o.settings.Outbound.ReplayLimit),
		ReplayMemory: o.memory,
		Hosts:        guard.NewHosts(p.Listen, o.settings.Outbound.AllowedHosts, p.Key != nil),
		CutOff:       o.cutOff.Load,
		Log:          o.log,
	}
	if p.Calls != nil {
		cfg.Started, cfg.Finished, cfg.Replayed = p.Calls.Started, p.Calls.Finished, p.Calls.Replayed
	}
	return proxy.New(cfg)
}

// Advise says what to do when usher cannot get a token for a port, with the variables that
// count there.
func (o *Outbound) Advise(err error, p *settings.Port) string {
	id, secret, scope := o.settings.IdentityVariables(p)
	rejected := new(tokens.RejectedError)
	switch {
	case !errors.As(err, &rejected):
		return o.adviseAddress(err)
	case rejected.Code == "invalid_scope":
		return fmt.Sprintf("check %s: usher can request only the scopes assigned to the API client", scope)
	default:
		return fmt.Sprintf("check %s and %s", id, secret)
	}
}

// adviseAddress says what to do when the service does not answer as it should.
func (o *Outbound) adviseAddress(err error) string {
	base := o.settings.Outbound.Base
	asked := "usher tried " + o.settings.Outbound.Endpoint("/oauth/token").Redacted()
	var (
		stranger x509.UnknownAuthorityError
		notTLS   tls.RecordHeaderError
		network  *net.OpError
	)
	unreached := errors.As(err, &network)
	switch {
	case unreached && network.Op == "proxyconnect":
		return "check HTTPS_PROXY, or add the service to NO_PROXY if it needs no proxy"
	case errors.As(err, &stranger):
		return "if the certificate comes from your own CA, or from a proxy that inspects TLS, set USHER_CA_FILE to a file with the CA's certificates"
	case errors.As(err, &notTLS):
		return asked + ", and the server there does not use https: check USHER_BASE_URL"
	case strings.HasSuffix(base.Path, "/graphql"), strings.HasSuffix(base.Path, "/oauth/token"):
		return asked + ": remove /graphql or /oauth/token from USHER_BASE_URL, usher adds them itself"
	case base.Scheme == "http" && !unreached:
		return asked + ": check USHER_BASE_URL; should it start with https?"
	}
	return asked + ": check USHER_BASE_URL"
}
