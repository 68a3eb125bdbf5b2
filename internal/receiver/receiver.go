// Package receiver is about those who take webhooks: the customer's applications. A Receiver is
// made by the settings and passed on as it is, to the gate, the inbox and the admin port. A Set
// says which receiver a platform has. Try sends one webhook once: queues, order and second tries
// are the gate's or the inbox's.
package receiver

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"usher/internal/wire"
)

// Main is the name of the receiver that takes what no other takes.
const Main = "main"

// A Receiver is one of the customer's applications. Nobody but the settings checks its fields.
type Receiver struct {
	Name        string        // in logs and metrics
	Platforms   []string      // the codes of the platforms whose webhooks it gets, matched exactly; none: all that no other gets
	URL         *url.URL      // its userinfo becomes Basic auth
	Timeout     time.Duration // of each try, up to the last byte of the answer
	Concurrency int           // deliveries at once, from an inbox
	Variable    string        // the setting that URL comes from

	// SignSecret returns the key that signs each try, in the form of signature.ParseKey. Nil:
	// nothing is signed.
	SignSecret func() string

	// Transport must respect the request's context, and must not send a request twice by itself.
	Transport http.RoundTripper

	// Tried counts a try: its result (ok, status, timeout or error) and how long it took. May be
	// nil.
	Tried func(result string, took time.Duration)
}

// Address returns as much of the receiver's address as anybody may see: the rest may hold a
// secret.
func (r *Receiver) Address() string { return r.URL.Scheme + "://" + r.URL.Host }

// NewTransport is for one receiver: receivers share no connections. It uses no proxy: a proxy
// must not see webhooks or the receiver's password, and its own 200 would count as the
// receiver's.
func NewTransport(conns int) http.RoundTripper {
	return wire.New(wire.Config{MaxIdle: conns, IdleTimeout: 30 * time.Second, MaxHead: 64 << 10})
}

// A Set is all receivers. It alone says which receiver a platform has. A nil Set has none.
type Set struct{ all []*Receiver }

// NewSet makes a Set. No two of its receivers have the same platform, and at most one has none.
func NewSet(all ...*Receiver) *Set { return &Set{all} }

// All returns the receivers in the order of the settings.
func (s *Set) All() []*Receiver {
	if s == nil {
		return nil
	}
	return s.all
}

// For returns the receiver of a platform's webhooks, or nil. Webhooks without a platform have the
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

// CloseIdleConnections closes the connections that no try uses.
func (s *Set) CloseIdleConnections() {
	for _, r := range s.All() {
		if pool, ok := r.Transport.(interface{ CloseIdleConnections() }); ok {
			pool.CloseIdleConnections()
		}
	}
}
