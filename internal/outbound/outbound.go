// Package outbound builds the way to the billing service from the settings: a pool of connections,
// the local ports, and one source of tokens for each identity among them. 'usher' serves the ports,
// 'usher exec' opens one of its own, and 'usher check' tries them.
package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"usher/internal/settings"
	"usher/internal/text"
	"usher/internal/version"
	"usher/internal/wire"
	"usher/proxy"
	"usher/tokens"
)

// Outbound is the way to the billing service.
type Outbound struct {
	Ports []*Port // in the order of the settings, the main port first

	settings   *settings.Settings
	log        *slog.Logger
	upstream   *wire.Client
	forTokens  *wire.Client // its timeout is not that of calls, which may be too short for a token
	target     *url.URL
	bodies     *proxy.Memory // for proxy.Config.ReplayMemory
	answers    *proxy.Memory // for proxy.Config.AnswerMemory
	identities []*Identity
}

// Port is a local port, and the identity that it calls the service with.
type Port struct {
	settings.Port
	*Identity

	// Started, Finished, Replayed and Failed are those of proxy.Config. New sets them to funcs that do nothing. Set others
	// before Handler.
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

func keyOf(p *settings.Port) identityKey {
	scopes := strings.Fields(p.Scope)
	slices.Sort(scopes)
	key := identityKey{clientID: p.ClientID, file: p.ClientSecret.Path(), scope: strings.Join(scopes, " ")}
	if key.file == "" {
		key.secret = p.ClientSecret.Get()
	}
	return key
}

// New builds the way to the service.
func New(s *settings.Settings, log *slog.Logger) (*Outbound, error) {
	o := &Outbound{
		settings: s, log: log,
		target:  s.Outbound.Endpoint("/graphql"),
		bodies:  proxy.NewMemory(s.Outbound.ReplayMemory),
		answers: proxy.NewMemory(32 << 20),
	}
	if err := o.connect(); err != nil {
		return nil, err
	}
	byKey := make(map[identityKey]*Identity)
	for i := range s.Ports {
		p := &s.Ports[i]
		id := byKey[keyOf(p)]
		if id == nil {
			id = o.newIdentity(p)
			byKey[keyOf(p)] = id
			o.identities = append(o.identities, id)
		}
		o.Ports = append(o.Ports, &Port{Port: *p, Identity: id, Started: func() {}, Finished: func(int, time.Duration) {}, Replayed: func() {}, Failed: func(string) {}})
	}
	return o, nil
}

// newIdentity makes the identity of p, which is the first port with this identity.
func (o *Outbound) newIdentity(p *settings.Port) *Identity {
	client := &tokens.Client{
		URL:       o.settings.Outbound.Endpoint("/oauth/token").String(),
		ID:        p.ClientID,
		Secret:    p.ClientSecret.Get,
		Scope:     p.Scope,
		HTTP:      o.forTokens,
		UserAgent: version.UserAgent(),
	}
	source := tokens.NewSource(client, o.log.With("port", p.Name))
	source.Advice = func(err error) string { return o.Advise(err, p) }
	p.ClientSecret.OnChange(source.SecretChanged)
	return &Identity{Owner: p.Name, Client: client, Source: source}
}

func (o *Outbound) connect() error {
	cfg := wire.Config{
		Timeout: o.settings.Outbound.UpstreamTimeout, Proxy: o.settings.Outbound.Proxy,
		MaxIdle:     4096,             // there are never more connections than there were calls at once
		IdleTimeout: 50 * time.Second, // common load balancers drop an idle connection after a minute
	}
	if ca := o.settings.Outbound.CA; ca != nil {
		roots, err := x509.SystemCertPool()
		if err != nil {
			return err
		}
		roots.AppendCertsFromPEM(ca)
		cfg.TLS = &tls.Config{RootCAs: roots}
	}
	o.upstream = wire.New(cfg)
	cfg.Timeout = tokens.FetchTimeout
	o.forTokens = wire.New(cfg)
	return nil
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
		Name:         p.Name,
		Target:       o.target,
		Source:       p.Source,
		Upstream:     o.upstream,
		Key:          p.Key.Getter(),
		ReplayLimit:  o.settings.Outbound.ReplayLimit,
		ReplayMemory: o.bodies,
		AnswerMemory: o.answers,
		Hosts:        guard.NewHosts(p.Listen, o.settings.Outbound.AllowedHosts, p.Key != nil),
		Log:          o.log,
		Started:      p.Started,
		Finished:     p.Finished,
		Replayed:     p.Replayed,
		Failed:       p.Failed,
	})
}

// Advise says what to do if usher cannot get a token for a port. It names the variables that this
// port uses.
func (o *Outbound) Advise(err error, p *settings.Port) string {
	id, secret, scope := o.settings.IdentityVariables(p)
	rejected, refused := errors.AsType[*tokens.RejectedError](err)
	switch {
	case !refused:
		return o.adviseAddress(err)
	case rejected.Code == "invalid_client":
		return fmt.Sprintf("check %s and %s: one of them is wrong, or the API client was deleted", id, secret)
	case rejected.Code == "invalid_scope":
		return fmt.Sprintf("check %s: usher can request only the scopes assigned to the API client", scope)
	default:
		return fmt.Sprintf("check %s, %s and %s against the API client in the billing service", id, secret, scope)
	}
}

// adviseAddress says what to do if the token endpoint cannot be reached, or its answer makes no sense.
func (o *Outbound) adviseAddress(err error) string {
	base := o.settings.Outbound.Base
	check := "check USHER_BASE_URL: usher tried " + o.settings.Outbound.Endpoint("/oauth/token").Redacted()
	network, unreached := errors.AsType[*net.OpError](err)
	_, stranger := errors.AsType[x509.UnknownAuthorityError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case unreached && network.Op == "proxyconnect":
		return "check HTTPS_PROXY, or add the service to NO_PROXY if it needs no proxy"
	case stranger:
		return "if the certificate comes from your own CA, or from a proxy that inspects TLS, set USHER_CA_FILE to a file with the CA's certificates"
	case notTLS:
		return check + ", and the server there does not use https"
	case strings.HasSuffix(base.Path, "/graphql"), strings.HasSuffix(base.Path, "/oauth/token"):
		return "remove /graphql or /oauth/token from USHER_BASE_URL: usher adds them itself"
	case base.Scheme == "http" && !unreached:
		return check + "; should it start with https?"
	}
	return check
}

// Probe calls the service with a token. Its error says what is wrong, and what to do about it.
func (o *Outbound) Probe(ctx context.Context, token *tokens.Token) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", o.target.Redacted(), err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, o.settings.Outbound.UpstreamTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.target.String(), strings.NewReader(`{"query":"{__typename}"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", version.UserAgent())
	req.Header["Authorization"] = token.Header()
	resp, err := o.upstream.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w; the same address did answer with a token, so try again, or increase USHER_UPSTREAM_TIMEOUT", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("the answer ended too early: %w; try again", err)
	}
	return judge(resp.StatusCode, body, token)
}

// refusedError says that the service refused a token, with the status of its answer.
type refusedError int

func (status refusedError) Error() string {
	return fmt.Sprintf("answered %d; the service rejects the token that it has just issued: does another program use this API client, and is the client allowed to use the API?", int(status))
}

// Refused reports whether err, of Probe, says that the service refused the token.
func Refused(err error) bool {
	_, refused := errors.AsType[refusedError](err)
	return refused
}

// judge returns an error that says what is wrong with an answer of the API, and what to do about it.
func judge(status int, body []byte, token *tokens.Token) error {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return refusedError(status)
	case status >= 500:
		return fmt.Errorf("answered %d; this is an error of the service, try again later", status)
	case status != http.StatusOK:
		return fmt.Errorf("answered %d; is USHER_BASE_URL right?", status)
	case !json.Valid(body):
		return errors.New("the answer is not JSON; is USHER_BASE_URL right?")
	}
	var answer struct {
		Data   json.RawMessage
		Errors []json.RawMessage
	}
	_ = json.Unmarshal(body, &answer) // other JSON counts as an answer without errors
	if len(answer.Errors) == 0 || len(answer.Data) > 0 && string(answer.Data) != "null" {
		return nil
	}
	var first struct{ Message string }
	if json.Unmarshal(answer.Errors[0], &first) == nil && first.Message != "" {
		first.Message = ": " + secret.Redact(text.Visible(first.Message), strings.TrimPrefix(token.Header()[0], "Bearer "))
	}
	return fmt.Errorf("answered with an error%s; is this API client allowed to use the API with these scopes?", first.Message)
}
