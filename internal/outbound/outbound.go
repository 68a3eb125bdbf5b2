// Package outbound is the way to the billing service: a pool of connections, the local ports, and one
// source of tokens for each identity among them. 'usher' serves the ports, 'usher exec' opens one of its
// own, and 'usher check' tries them.
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
	"time"

	"usher/internal/guard"
	"usher/internal/secret"
	"usher/internal/version"
	"usher/internal/wire"
	"usher/proxy"
	"usher/tokens"
)

// Config is what an Outbound needs. Package settings fills all but Log, and has checked it.
type Config struct {
	Base            *url.URL // the service's address
	Proxy           func(*url.URL) (*url.URL, error)
	UpstreamTimeout time.Duration // see wire.Config.Timeout; not for tokens
	AllowedHosts    []string      // more values of the Host header that every port accepts

	ReplayLimit int64 // the largest body that is kept, to send it again after a 401

	// Main is the main port, whose API client makes usher's own calls. It is one of Ports, unless it is off.
	Main  *Port
	Ports []*Port
	Log   *slog.Logger
}

// Endpoint returns the URL of a path below the base address. (URL.JoinPath would return a relative path if
// the base has none, and would clean a prefix that must stay as it is.)
func (c *Config) Endpoint(path string) *url.URL {
	u := *c.Base
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	return &u
}

// Outbound is the way to the billing service.
type Outbound struct {
	Ports []*Port // those of the Config

	cfg        Config
	upstream   *wire.Client
	forTokens  *wire.Client // its timeout is not that of calls, which may be too short for a token
	target     *url.URL
	bodies     *proxy.Memory // for proxy.Config.ReplayMemory
	identities []*Identity
}

// Port is a local port, and the identity that it calls the service with.
type Port struct {
	Name, Listen, Scope, ClientID string
	ClientSecret, Key             *secret.Value

	// Variables are the settings that it has its address and its identity from, for advice. It may have inherited them.
	Variables struct{ Listen, ClientID, ClientSecret, Scope string }

	*Identity // New sets it

	// These are those of proxy.Config. New sets them to funcs that do nothing.
	Started  func()
	Finished func(status int, took time.Duration)
	Replayed func()
	Failed   func(reason string)
}

// Identity is an API client with some scopes. usher keeps a token for each identity. Ports with the
// same identity share it.
type Identity struct {
	Owner  string // the name of the first port with this identity
	Client *tokens.Client
	Source *tokens.Source
}

// identityKey is equal for ports with the same identity. A secret in a file counts as the path of the
// file: two files may have the same content today, and tomorrow only one of them changes.
type identityKey struct{ clientID, file, secret, scope string }

func keyOf(p *Port) identityKey {
	scopes := strings.Fields(p.Scope)
	slices.Sort(scopes)
	key := identityKey{clientID: p.ClientID, file: p.ClientSecret.Path(), scope: strings.Join(scopes, " ")}
	if key.file == "" {
		key.secret = p.ClientSecret.Get()
	}
	return key
}

// New builds the way to the service.
func New(cfg Config) *Outbound {
	o := &Outbound{Ports: cfg.Ports, cfg: cfg, target: cfg.Endpoint("/graphql"), bodies: proxy.NewMemory(32 << 20)}
	connections := wire.Config{
		Timeout: cfg.UpstreamTimeout, Proxy: cfg.Proxy,
		MaxIdle:     4096,             // there are never more connections than there were calls at once
		IdleTimeout: 50 * time.Second, // common load balancers drop an idle connection after a minute
	}
	o.upstream = wire.New(connections)
	connections.Timeout = tokens.FetchTimeout
	o.forTokens = wire.New(connections)
	byKey := make(map[identityKey]*Identity)
	for _, p := range o.Ports {
		id := byKey[keyOf(p)]
		if id == nil {
			id = o.newIdentity(p)
			byKey[keyOf(p)] = id
			o.identities = append(o.identities, id)
		}
		p.Identity = id
		p.Started, p.Finished, p.Replayed = func() {}, func(int, time.Duration) {}, func() {}
		p.Failed = func(string) {}
	}
	return o
}

// newIdentity makes the identity of p, which is the first port with this identity.
func (o *Outbound) newIdentity(p *Port) *Identity {
	client := o.client(p)
	source := tokens.NewSource(client, o.cfg.Log.With("port", p.Name))
	source.Advice = func(err error) string { return o.Advise(err, p) }
	p.ClientSecret.OnChange(source.SecretChanged)
	return &Identity{Owner: p.Name, Client: client, Source: source}
}

// client returns what asks for the tokens of a port.
func (o *Outbound) client(p *Port) *tokens.Client {
	return &tokens.Client{
		URL: o.cfg.Endpoint("/oauth/token").String(), HTTP: o.forTokens, UserAgent: version.UserAgent(),
		ID: p.ClientID, Secret: p.ClientSecret.Get, Scope: p.Scope,
	}
}

// Run keeps the tokens fresh until ctx ends. It returns when everything that it has started has ended.
func (o *Outbound) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, id := range o.identities {
		running.Go(func() { id.Source.Run(ctx) })
	}
	running.Wait()
	o.upstream.CloseIdleConnections()
	o.forTokens.CloseIdleConnections()
}

// Handler returns the handler of a local port.
func (o *Outbound) Handler(p *Port) http.Handler {
	return proxy.New(proxy.Config{
		Name: p.Name, Target: o.target, Source: p.Source, Upstream: o.upstream, Log: o.cfg.Log,
		Key:         p.Key.Getter(),
		Hosts:       guard.NewHosts(p.Listen, o.cfg.AllowedHosts, p.Key != nil),
		ReplayLimit: o.cfg.ReplayLimit, ReplayMemory: o.bodies,
		Started: p.Started, Finished: p.Finished, Replayed: p.Replayed, Failed: p.Failed,
	})
}

// Advise says what to do if usher cannot get a token for a port. It names the variables that this
// port uses.
func (o *Outbound) Advise(err error, p *Port) string {
	v := p.Variables
	rejected, refused := errors.AsType[*tokens.RejectedError](err)
	switch {
	case !refused:
		return o.adviseAddress(err)
	case rejected.Code == "invalid_client":
		return fmt.Sprintf("check %s and %s: one of them is wrong, or the API client was deleted",
			v.ClientID, v.ClientSecret)
	case rejected.Code == "invalid_scope":
		return fmt.Sprintf("check %s: usher can request only the scopes assigned to the API client", v.Scope)
	case rejected.Code == "unauthorized_client":
		return fmt.Sprintf("in the billing service's settings, add \"client credentials\" to the grant flows of the "+
			"API client that %s names; the secret is not the reason", v.ClientID)
	default:
		return fmt.Sprintf("check %s, %s and %s against the API client in the billing service",
			v.ClientID, v.ClientSecret, v.Scope)
	}
}

// adviseAddress says what to do if the token endpoint cannot be reached, or its answer makes no sense.
func (o *Outbound) adviseAddress(err error) string {
	endpoint := o.cfg.Endpoint("/oauth/token").Redacted()
	check := "check USHER_BASE_URL: usher tried " + endpoint
	status, _ := errors.AsType[tokens.StatusError](err)
	network, unreached := errors.AsType[*net.OpError](err)
	_, stranger := errors.AsType[x509.UnknownAuthorityError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case unreached && network.Op == "proxyconnect":
		return "check HTTPS_PROXY, or add the service to NO_PROXY if it needs no proxy"
	case stranger:
		return "if the certificate comes from your own CA, or from a proxy that inspects TLS, " +
			"set SSL_CERT_FILE to a file with the CA's certificates"
	case notTLS:
		return check + ", and the server there does not use https"
	case strings.HasSuffix(o.cfg.Base.Path, "/graphql"), strings.HasSuffix(o.cfg.Base.Path, "/oauth/token"):
		return "remove /graphql or /oauth/token from USHER_BASE_URL: usher adds them itself"
	case status >= 500:
		return "find out why " + endpoint + " fails (USHER_BASE_URL has its address)"
	case o.cfg.Base.Scheme == "http" && !unreached:
		return check + "; should it start with https?"
	}
	return check
}
