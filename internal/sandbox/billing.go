package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"usher/internal/guard"
)

// Client is an API client application of the billing service.
type Client struct {
	ID, Secret string   // both required; an empty one is never accepted
	Scopes     []string // the scopes that it may request, such as standard:read

	// TokenLife is how long its tokens are valid, rounded down to whole seconds, at least one second.
	// The default is 7200 s.
	TokenLife time.Duration
	OneToken  bool // a new token revokes the client's earlier ones, whatever their scopes
	NoGrant   bool // its grant flows lack client credentials
}

// Billing is a billing service: an [http.Handler] with POST /oauth/token and POST /graphql, and nothing
// else. It keeps everything in memory and is safe for concurrent use.
type Billing struct {
	// OnCall is called for every call that reaches the GraphQL endpoint, accepted or not. It may be
	// called concurrently. Set it before serving.
	OnCall func(r *http.Request, body []byte)

	*records
	key     []byte // signs the tokens
	schemas schemas
	faults  faults // by path, and of the webhook log

	tokenRequests atomic.Int64

	mu      sync.Mutex
	clients map[string]*Client // by ID, guarded by mu
	issued  map[string]*grant  // by token, guarded by mu
	calls   map[int]int        // by the status of their answer, guarded by mu
}

const (
	tokenPath, maxTokenBody = "/oauth/token", 64 << 10
	callPath, maxCallBody   = "/graphql", 64 << 20 // far above any replay limit, so that tests can stream large bodies
	logPart                 = "log"                // of the GraphQL endpoint: queries for the webhook log
)

// NewBilling returns a service with these clients and without faults.
func NewBilling(clients ...Client) *Billing {
	b := &Billing{
		key:     make([]byte, 32),
		records: &records{book: &book{places: make(map[[2]string]int)}, log: &webhookLog{limit: maxLog}},
		clients: make(map[string]*Client),
		issued:  make(map[string]*grant),
		calls:   make(map[int]int),
	}
	b.schemas = newSchemas(b.records)
	_, _ = rand.Read(b.key) // is documented never to fail
	for _, c := range clients {
		b.clients[c.ID] = &c
	}
	return b
}

// ServeHTTP answers as the service does. For a fault that closes the connection it panics with
// [http.ErrAbortHandler], which [http.Server] handles.
func (b *Billing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.EscapedPath(); path {
	case tokenPath:
		body, refusal := readPost(w, r, maxTokenBody)
		b.tokenRequests.Add(1)
		b.faults.take(path).serve(w, r, refusal, func() answer { return b.token(r, body) }, func(int) {})
	case callPath:
		body, refusal := readPost(w, r, maxCallBody)
		if b.OnCall != nil {
			b.OnCall(r, body)
		}
		parts := []string{path}
		if bytes.Contains(body, []byte("webhookEvent")) {
			parts = append(parts, logPart)
		}
		b.faults.take(parts...).serve(w, r, refusal, func() answer { return b.call(r, body) }, func(int) {})
	default:
		textAnswer(http.StatusNotFound, "not found").write(w)
	}
}

// EditClient changes a client. Its tokens stay valid. EditClient panics if there is no such client, so that
// a typing error in a test does not go unnoticed.
func (b *Billing) EditClient(clientID string, edit func(*Client)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	edit(b.clients[clientID])
}

// Revoke revokes every valid token, and returns how many there were.
func (b *Billing) Revoke() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revokeLocked(func(*grant) bool { return true })
}

func (b *Billing) revokeLocked(which func(*grant) bool) (n int) {
	for _, g := range b.issued {
		if !g.revoked && time.Now().Before(g.expires) && which(g) {
			g.revoked = true
			n++
		}
	}
	return n
}

// FailTokens makes the token endpoint fail; the zero Fault ends that.
func (b *Billing) FailTokens(f Fault) { b.faults.set(tokenPath, f) }

// FailGraphQL makes the GraphQL endpoint fail; the zero Fault ends that.
func (b *Billing) FailGraphQL(f Fault) { b.faults.set(callPath, f) }

// TokenRequests returns how many requests reached the token endpoint, accepted or not.
func (b *Billing) TokenRequests() int { return int(b.tokenRequests.Load()) }

// Calls returns how many GraphQL calls were answered with 200 and with 401. It does not count the answers of
// a fault.
func (b *Billing) Calls() (ok, unauthorized int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[http.StatusOK], b.calls[http.StatusUnauthorized]
}

// oauthError is the token endpoint's error object.
type oauthError struct {
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

// tokenResponse has the four fields that the interface documents, and no others.
type tokenResponse struct {
	AccessToken string `json:"access_token"`
	TokenType   string `json:"token_type"`
	ExpiresIn   int64  `json:"expires_in"`
	CreatedAt   int64  `json:"created_at"`
}

// grant is what the service stores about a token. A call's token is looked up in a table, as real services
// do, and not judged by its exp: that has whole seconds, so it can be up to a second too early.
type grant struct {
	clientID string
	scopes   []string
	expires  time.Time
	revoked  bool
}

// token answers a token request.
//
// The checks are in the order of common OAuth servers: first the grant type, then the client, then the
// scope. So only a known client can find out which scopes exist.
func (b *Billing) token(r *http.Request, body []byte) answer {
	form, err := url.ParseQuery(string(body))
	if err != nil || !hasType(r, "application/x-www-form-urlencoded") {
		form = nil // a JSON body, for example, has no grant type
	}
	one := func(name string) string { // a field that occurs twice counts as missing (RFC 6749, section 3.2)
		if len(form[name]) != 1 {
			return ""
		}
		return form[name][0]
	}
	if one("grant_type") != "client_credentials" {
		return refuseToken(http.StatusBadRequest, "unsupported_grant_type",
			"The authorization grant type is not supported by the authorization server.")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c, known := b.clients[one("client_id")]
	if !known || !guard.Equal(one("client_secret"), c.Secret) {
		return refuseToken(http.StatusUnauthorized, "invalid_client",
			"Client authentication failed due to unknown client, no client authentication included, "+
				"or unsupported authentication method.")
	}
	if c.NoGrant {
		return refuseToken(http.StatusForbidden, "unauthorized_client",
			"The client is not authorized to perform this request using this method.")
	}
	scopes := strings.FieldsFunc(one("scope"), func(r rune) bool { return r == ' ' })
	foreign := func(s string) bool { return !slices.Contains(c.Scopes, s) }
	if len(scopes) == 0 || slices.ContainsFunc(scopes, foreign) {
		return refuseToken(http.StatusBadRequest, "invalid_scope",
			"The requested scope is invalid, unknown, or malformed.")
	}
	a := jsonAnswer(http.StatusOK, b.issueLocked(c, scopes))
	a.header.Set("Cache-Control", "no-store")
	return a
}

func refuseToken(status int, code, description string) answer {
	a := jsonAnswer(status, oauthError{code, description})
	a.header.Set("Cache-Control", "no-store")
	if status == http.StatusUnauthorized {
		a.header.Set("WWW-Authenticate", `Bearer realm="usher sandbox", error="`+code+`"`)
	}
	return a
}

func (b *Billing) issueLocked(c *Client, scopes []string) tokenResponse {
	life := 7200 * time.Second
	if c.TokenLife > 0 {
		life = max(c.TokenLife.Truncate(time.Second), time.Second)
	}
	now := time.Now().Round(0) // by the wall clock alone, which also counts the time while a laptop sleeps
	maps.DeleteFunc(b.issued, func(_ string, g *grant) bool { return now.Sub(g.expires) > time.Hour })
	if c.OneToken {
		b.revokeLocked(func(g *grant) bool { return g.clientID == c.ID })
	}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": "usher-sandbox", "sub": c.ID, "scope": strings.Join(scopes, " "),
		"iat": now.Unix(), "exp": now.Add(life).Unix(), "jti": rand.Text(),
	}).SignedString(b.key)
	if err != nil {
		panic(err) // cannot happen: HMAC with our own key
	}
	b.issued[signed] = &grant{c.ID, scopes, now.Add(life), false}
	return tokenResponse{signed, "Bearer", int64(life / time.Second), now.Unix()}
}

// check returns the scopes of a token, or why it is not valid.
func (b *Billing) check(token string) (scopes []string, fault string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch g := b.issued[token]; {
	case g == nil:
		return nil, "The access token is invalid"
	case !time.Now().Before(g.expires):
		return nil, "The access token expired"
	case g.revoked:
		return nil, "The access token was revoked"
	default:
		return g.scopes, ""
	}
}

func (b *Billing) call(r *http.Request, body []byte) (a answer) {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.calls[a.status]++
	}()
	token, found := bearer(r.Header)
	if !found {
		return unauthorized("The access token is missing")
	}
	scopes, fault := b.check(token)
	if fault != "" {
		return unauthorized(fault)
	}
	if !hasType(r, "application/json") {
		return queryError(http.StatusUnsupportedMediaType, "Content-Type must be application/json")
	}
	var q struct {
		Query         string         `json:"query"`
		Variables     map[string]any `json:"variables"`
		OperationName string         `json:"operationName"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return queryError(http.StatusBadRequest, "the body is not a GraphQL request: "+err.Error())
	}
	ctx := context.WithValue(r.Context(), scopesKey{}, scopes)
	return jsonAnswer(http.StatusOK, b.schemas.run(ctx, q.Query, q.OperationName, q.Variables))
}

func hasType(r *http.Request, mediaType string) bool {
	given, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && given == mediaType
}

// bearer returns the token of the Authorization header. Two such headers count as none, because it would
// not be clear which one applies.
func bearer(h http.Header) (token string, found bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, found := strings.Cut(values[0], " ")
	return token, found && strings.EqualFold(scheme, "Bearer")
}

// unauthorized is the documented answer to an expired token. The sandbox gives it for every token that it
// does not accept.
func unauthorized(description string) answer {
	a := jsonAnswer(http.StatusUnauthorized, []map[string][]string{{"description": {description}}})
	a.header.Set("WWW-Authenticate", `Bearer realm="usher sandbox", error="invalid_token"`)
	return a
}

func queryError(status int, message string) answer {
	return jsonAnswer(status, map[string][]map[string]string{"errors": {{"message": message}}})
}
