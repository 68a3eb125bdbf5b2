// Package receiver sends webhooks to the customer's applications. A Set says which receiver a platform has. Try sends
// a webhook once. The gate and the inbox decide about queues, order and further tries.
package receiver

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/secret"
	"usher/internal/signature"
	"usher/internal/wire"
)

// Main is the name of the receiver of all platforms that have no receiver of their own.
const Main = "main"

// A Receiver is one of the customer's applications. Package settings has checked its fields.
type Receiver struct {
	Name        string        // in logs and metrics
	Platforms   []string      // the codes of its platforms, matched exactly; empty: all that have no other receiver
	URL         *url.URL      // its userinfo becomes Basic auth
	Timeout     time.Duration // of each try, up to the last byte of the answer
	Concurrency int           // how many webhooks of an inbox it gets at once
	Variable    string        // the name of the setting that has URL

	Service Credentials // what each try carries beside its own

	// ForwardSigningKey returns the keys that sign each try, as signature.ParseKeys reads them. Nil: nothing is
	// signed.
	ForwardSigningKey func() string

	// Secrets are those of all settings: nothing of them is shown of what the receiver answers.
	Secrets []*secret.Value

	// Transport must respect the request's context, and must not send a request twice by itself.
	Transport http.RoundTripper

	// Tried is called after each try with its result (ok, status, timeout or error), the status of the
	// answer, zero if there was none, and how long it took. May be nil.
	Tried func(result string, status int, took time.Duration)

	mu       sync.Mutex
	underWay []*time.Time // when each try under way began, the oldest first; mu guards it
}

// Credentials are how the billing service proves who it is. The gate checks them, and receivers that checked them
// before there was an usher can go on.
type Credentials struct {
	// Tokens returns the tokens that are valid now, separated by commas. Each try carries the first of them as
	// Authorization: Bearer. Nil: there are none.
	Tokens func() string

	// SigningKeys returns the keys of the signatures over the body, separated by commas. Webhooks that have no
	// signature, because usher has made them, are signed with the first. Nil: there are none.
	SigningKeys func() string

	// SignatureHeader carries the signature, in hex or base64, and HMAC made it.
	SignatureHeader string
	HMAC            signature.HMAC
}

// Unanswered returns since when usher waits for the answer to the oldest try; zero: it waits for none.
func (r *Receiver) Unanswered() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.underWay) == 0 {
		return time.Time{}
	}
	return *r.underWay[0]
}

// begin notes that a try begins; the result notes its end.
func (r *Receiver) begin() (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := new(time.Now())
	r.underWay = append(r.underWay, began)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.underWay = slices.DeleteFunc(r.underWay, func(other *time.Time) bool { return other == began })
	}
}

// Address returns the part of the receiver's URL that is safe to show. The rest may contain a secret.
func (r *Receiver) Address() string { return r.URL.Scheme + "://" + r.URL.Host }

// NewTransport returns the transport of one receiver; receivers share no connections. It uses no
// proxy: a proxy would see webhooks and the receiver's password, and the proxy's own 200 would count
// as the receiver's.
func NewTransport(conns int) http.RoundTripper {
	return wire.New(wire.Config{MaxIdle: conns, IdleTimeout: 30 * time.Second, MaxHead: 64 << 10})
}

// A Set has all receivers, and decides which receiver a platform has. A nil Set has none.
type Set struct{ all []*Receiver }

// NewSet makes a Set. A platform must not occur twice, and at most one receiver may have no platforms.
func NewSet(all ...*Receiver) *Set { return &Set{all} }

// All returns the receivers in the order of the settings.
func (s *Set) All() []*Receiver {
	if s == nil {
		return nil
	}
	return s.all
}

// For returns the receiver of a platform, or nil if it has none. Webhooks without a platform have the
// empty code.
func (s *Set) For(platform string) (rest *Receiver) {
	for _, r := range s.All() {
		if slices.Contains(r.Platforms, platform) {
			return r
		}
		if len(r.Platforms) == 0 {
			rest = r
		}
	}
	return rest
}

// Main returns the receiver of all platforms that have no receiver of their own, or nil if there is none.
func (s *Set) Main() *Receiver { return s.For("") }

// CloseIdleConnections closes the connections that no try uses.
func (s *Set) CloseIdleConnections() {
	for _, r := range s.All() {
		if pool, ok := r.Transport.(interface{ CloseIdleConnections() }); ok {
			pool.CloseIdleConnections()
		}
	}
}

// authorize adds what the receiver may check: the user and the password of its address or else the billing service's
// token, and the service's signature. They are added to each try and not stored with the webhook, because they may
// change while it waits.
func (r *Receiver) authorize(header http.Header, body []byte) {
	if user := r.URL.User; user != nil {
		password, _ := user.Password()
		(&http.Request{Header: header}).SetBasicAuth(user.Username(), password)
	} else if r.Service.Tokens != nil {
		token, _, _ := strings.Cut(r.Service.Tokens(), ",")
		header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	}
	if s := r.Service; s.SigningKeys != nil && header.Values(s.SignatureHeader) == nil {
		header.Set(s.SignatureHeader, s.HMAC.Sign(s.SigningKeys(), body))
	}
}
