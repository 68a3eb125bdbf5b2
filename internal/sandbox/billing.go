package sandbox

import (
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/graph-gophers/graphql-go"
)

// Client is an API client application of the billing service.
type Client struct {
	ID, Secret string   // both required; an empty one is never accepted
	Scopes     []string // the scopes that it may request, such as standard:read

	// TokenLife is how long its tokens live, in whole seconds (rounded down, at least one
	// second). Default 7200 s.
	TokenLife time.Duration
}

// Billing is a billing service: an [http.Handler] with POST /oauth/token and POST /graphql, and nothing
// else. It keeps everything in memory and is safe for concurrent use.
type Billing struct {
	// OnCall is called for every call that reaches the GraphQL endpoint, accepted or not,
	// also concurrently. Set it before serving.
	OnCall func(r *http.Request, body []byte)

	key     []byte // signs the tokens
	parser  *jwt.Parser
	schema  *graphql.Schema
	tokens  faulty
	graphql faulty

	mu             sync.Mutex
	clients        map[string]Client // by ID, guarded by mu
	issued         map[string]grant  // tokens that are not revoked, by jti; guarded by mu
	revokePrevious bool              // guarded by mu
	tokenRequests  int               // guarded by mu
	calls          map[int]int       // by the status of their answer, guarded by mu
}

// NewBilling returns a service with these clients and without faults.
func NewBilling(clients ...Client) *Billing {
	b := &Billing{
		key: make([]byte, 32),
		// The library knows exp only to the second; check is exact. See grant.
		parser:  jwt.NewParser(jwt.WithValidMethods([]string{"HS256"}), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation()),
		schema:  graphql.MustParseSchema(schemaText, &queries{}, graphql.UseFieldResolvers()),
		clients: make(map[string]Client),
		issued:  make(map[string]grant),
		calls:   make(map[int]int),
	}
	_, _ = rand.Read(b.key) // is documented never to fail
	for _, c := range clients {
		c.TokenLife = wholeLife(c.TokenLife)
		b.clients[c.ID] = c
	}
	return b
}

const (
	maxTokenBody = 64 << 10
	maxCallBody  = 64 << 20 // far above any replay limit, so that tests can stream
)

// ServeHTTP answers as the service does. A fault that closes the connection
// panics with [http.ErrAbortHandler], which an [http.Server] understands.
func (b *Billing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.EscapedPath() {
	case "/oauth/token":
		b.serveToken(w, r)
	case "/graphql":
		b.serveGraphQL(w, r)
	default:
		textAnswer(http.StatusNotFound, "not found").write(w)
	}
}

func (b *Billing) serveToken(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.tokenRequests++
	b.mu.Unlock()
	body, refusal := readPost(w, r, maxTokenBody)
	b.tokens.serve(w, r, func() answer {
		if refusal != nil {
			return *refusal
		}
		return b.token(r.Header.Get("Content-Type"), body)
	}, func(int) {})
}

func (b *Billing) serveGraphQL(w http.ResponseWriter, r *http.Request) {
	body, refusal := readPost(w, r, maxCallBody)
	if b.OnCall != nil {
		b.OnCall(r, body)
	}
	b.graphql.serve(w, r, func() answer {
		if refusal != nil {
			return *refusal
		}
		a := b.call(r, body)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.calls[a.status]++
		return a
	}, func(int) {})
}

// readPost reads a request's body, or returns a refusal.
func readPost(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *answer) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var refusal answer
	switch _, tooLarge := errors.AsType[*http.MaxBytesError](err); {
	case r.Method != http.MethodPost:
		refusal = textAnswer(http.StatusMethodNotAllowed, "method not allowed")
		refusal.header.Set("Allow", http.MethodPost)
	case tooLarge:
		refusal = textAnswer(http.StatusRequestEntityTooLarge, "body too large")
	case err != nil:
		refusal = textAnswer(http.StatusBadRequest, "body ended too early")
	default:
		return body, nil
	}
	return body, &refusal
}

// SetTokenLife sets the life of the client's tokens that are issued from now on; see [Client]. It
// panics if there is no such client.
func (b *Billing) SetTokenLife(clientID string, d time.Duration) {
	b.change(clientID, func(c *Client) { c.TokenLife = wholeLife(d) })
}

// SetSecret rotates the client's secret: the old one is refused from now on. Tokens stay valid. It
// panics if there is no such client.
func (b *Billing) SetSecret(clientID, secret string) {
	b.change(clientID, func(c *Client) { c.Secret = secret })
}

// change edits a client. It panics on a wrong ID, so that a typing error in a test does not go
// unnoticed.
func (b *Billing) change(clientID string, edit func(*Client)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, known := b.clients[clientID]
	if !known {
		panic("sandbox: no client " + clientID)
	}
	edit(&c)
	b.clients[clientID] = c
}

// Revoke makes every token issued so far invalid, and returns how many that were.
func (b *Billing) Revoke() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.issued)
	clear(b.issued)
	return n
}

// RevokePreviousOnIssue sets whether a new token of a client makes its earlier ones invalid, whatever
// their scopes.
func (b *Billing) RevokePreviousOnIssue(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revokePrevious = on
}

// FailTokens makes the token endpoint fail; a zero Fault ends that.
func (b *Billing) FailTokens(f Fault) { b.tokens.set(f) }

// FailGraphQL makes the GraphQL endpoint fail; a zero Fault ends that.
func (b *Billing) FailGraphQL(f Fault) { b.graphql.set(f) }

// TokenRequests returns how many requests reached the token endpoint, whatever their answer.
func (b *Billing) TokenRequests() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokenRequests
}

// Calls returns how many GraphQL calls were answered with 200 and with 401, without those that a
// fault answered.
func (b *Billing) Calls() (ok, unauthorized int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[http.StatusOK], b.calls[http.StatusUnauthorized]
}

func wholeLife(d time.Duration) time.Duration {
	if d <= 0 {
		return 7200 * time.Second
	}
	return max(d.Truncate(time.Second), time.Second)
}
