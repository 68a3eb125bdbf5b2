// Package delivery sends a webhook to a receiver, once. It knows no senders, no lanes and no
// second try: those are the gate's, or the inbox's.
package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"usher/internal/clip"
	"usher/internal/wire"
	"usher/webhookgate/signature"
)

const (
	maxAnswer   = 64 << 10 // how much of a receiver's answer is read, so that the connection can be used again
	maxExcerpt  = 1 << 10  // how much of it others get to see
	maxDecision = 1 << 20  // the largest answer to a question; it is kept in memory for the sender
)

// A Receiver is one of the customer's applications. All fields but SignSecret are required.
type Receiver struct {
	Name       string            // in logs and metrics
	URL        *url.URL          // its userinfo becomes Basic auth
	Timeout    time.Duration     // of each try, up to the last byte of the answer
	SignSecret func() string     // asked at each try, in the form of signature.ParseKey; nil: nothing is signed
	Transport  http.RoundTripper // must not send a request twice by itself
}

// NewTransport is for one receiver. It uses no proxy: a proxy must not see webhooks or the
// receiver's password, and its own 200 would count as the receiver's.
func NewTransport(conns int) http.RoundTripper {
	return wire.New(wire.Config{MaxIdle: conns, IdleTimeout: 30 * time.Second, MaxHead: 64 << 10})
}

// CloseIdleConnections closes the connections that no try uses.
func (r *Receiver) CloseIdleConnections() {
	if pool, ok := r.Transport.(interface{ CloseIdleConnections() }); ok {
		pool.CloseIdleConnections()
	}
}

// Try sends a webhook once: its id, the headers that do not differ from try to try, its body.
func (r *Receiver) Try(ctx context.Context, id string, header http.Header, body []byte) Attempt {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	resp, err := r.send(ctx, id, header, body)
	if err != nil {
		return Attempt{Err: err}
	}
	defer resp.Body.Close()
	t := Attempt{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header)}
	// A 2xx means accepted, whatever follows. usher still waits for the body: before its end
	// the receiver may not be finished.
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.Header.Get("Content-Encoding") == "" {
		t.Excerpt = clip.Text(string(said), maxExcerpt)
	}
	return t
}

// A Decision is a receiver's answer to a question, unchanged.
type Decision struct {
	Status int
	Header http.Header // only what is needed to read the body
	Body   []byte
}

// Ask sends a question once, and returns the receiver's whole answer: half an answer must not
// look like a decision.
func (r *Receiver) Ask(ctx context.Context, id string, header http.Header, body []byte) (*Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	resp, err := r.send(ctx, id, header, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	d := &Decision{Status: resp.StatusCode, Header: make(http.Header)}
	if d.Body, err = io.ReadAll(io.LimitReader(resp.Body, maxDecision+1)); err != nil {
		return nil, fmt.Errorf("%w: %w", unusable("the receiver's answer ended too early"), err)
	}
	if len(d.Body) > maxDecision {
		return nil, unusable(fmt.Sprintf("the receiver's answer is larger than %d bytes", maxDecision))
	}
	for _, name := range []string{"Content-Type", "Content-Encoding"} {
		d.Header[name] = resp.Header.Values(name) // nil keeps net/http from guessing a type
	}
	return d, nil
}

// ErrUnsigned: nothing is sent while the signing secret cannot be used. If a receiver got
// unsigned webhooks for a while, somebody might make it accept them.
var ErrUnsigned = errors.New("the signing secret can't be used")

// send makes one request: the same webhook as always, with its own timestamp and signature.
func (r *Receiver) send(ctx context.Context, id string, header http.Header, body []byte) (*http.Response, error) {
	var key []byte
	if r.SignSecret != nil {
		var err error
		if key, err = signature.ParseKey(r.SignSecret()); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnsigned, err)
		}
	}
	target := *r.URL
	target.User = nil
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           &target,
		Host:          target.Host,
		Header:        header.Clone(),
		ContentLength: int64(len(body)),
		Body:          io.NopCloser(bytes.NewReader(body)),
	}).WithContext(ctx)
	signature.Stamp(req.Header, key, id, time.Now(), body)
	if user := r.URL.User; user != nil { // not stored with the webhook, which may wait for longer than the password is valid
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	return r.Transport.RoundTrip(req)
}
