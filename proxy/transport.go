package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"usher/internal/wire"
	"usher/tokens"
)

// transport is the hot path: take the token, send; on a 401 renew, send again.
// It is a RoundTripper because there a missing token can be returned as an error:
// no request leaves without one.
type transport struct {
	source   *tokens.Source
	upstream http.RoundTripper
	limit    int64
	memory   *Memory
	replayed func()
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// Before the body is read, so that a caller whom nothing can be done for is told
	// at once; and again after it, as that may take a while.
	token, err := t.source.Token(req.Context())
	if err != nil {
		return nil, err
	}
	body := new(payload)
	if out, ok := req.Body.(outgoing); ok {
		body = &out.caller.payload // the handler releases it
	}
	if err := body.read(req, t.limit, t.memory); err != nil {
		return nil, err
	}
	token, err = t.source.Latest(req.Context(), token)
	if err != nil {
		return nil, err
	}
	resp, err := t.send(req, body, token)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	if body.stream != nil { // it is gone: the caller has to send it again
		t.source.Refused(token)
		return resp, nil
	}
	fresh, err := t.source.Replace(req.Context(), token)
	if errors.Is(err, tokens.ErrKept) {
		return resp, nil
	}
	dispose(resp)
	if err != nil {
		return nil, err
	}
	if t.replayed != nil {
		t.replayed()
	}
	return t.send(req, body, fresh)
}

// send sends the call once. (Where a connection from the pool turns out to be dead before
// a byte of the call has left, wire takes the next one.)
func (t *transport) send(req *http.Request, body *payload, token *tokens.Token) (*http.Response, error) {
	// In place: ReverseProxy has made this request for us alone.
	req.Header["Authorization"] = token.Header()
	body.attach(req)
	resp, err := t.upstream.RoundTrip(req)
	switch {
	case err != nil:
		return nil, failure(err)
	case resp.StatusCode < 200:
		// net/http would panic over a status below 100; and nobody asked to switch protocols.
		resp.Body.Close()
		return nil, fmt.Errorf("its status is %d", resp.StatusCode)
	}
	return resp, nil
}

// failure tells a service that can't be reached from one whose answer can't be used.
func failure(err error) error {
	if unusable := new(wire.AnswerError); errors.As(err, &unusable) {
		return err
	}
	return &upstreamError{err}
}

// dispose of an answer that nobody will read: drained, so that its connection can
// be used again, but neither for long nor to any length.
func dispose(resp *http.Response) {
	stop := time.AfterFunc(time.Second, func() { resp.Body.Close() })
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	stop.Stop()
	resp.Body.Close()
}

// upstreamError marks what went wrong between usher and the service.
type upstreamError struct{ err error }

func (e *upstreamError) Error() string { return e.err.Error() }
func (e *upstreamError) Unwrap() error { return e.err }

// timeout says whether the service was reached but did not answer in time. A
// timeout of the dialling means that it was not reached.
func (e *upstreamError) timeout() bool {
	var timeout net.Error
	unreached := new(wire.DialError)
	return errors.As(e.err, &timeout) && timeout.Timeout() && !errors.As(e.err, &unreached)
}
