package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"

	"usher/internal/wire"
	"usher/tokens"
)

// transport is the hot path: add the token and send; on a 401 renew it and send again. It is
// a RoundTripper because a RoundTripper can return an error if there is no token, so no
// request leaves without one.
type transport struct{ Config }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// Ask before the body is read, so that a caller gets an error at once if there is no token.
	token, err := t.Source.Token(req.Context())
	if err != nil {
		return nil, err
	}
	body := new(payload)
	if caller, ok := req.Body.(*callerBody); ok {
		body = &caller.payload // the handler releases it
	}
	if err := body.read(req.Body, req.ContentLength, t.ReplayLimit, t.ReplayMemory); err != nil {
		return nil, err
	}
	if body.stream != nil && body.length >= 0 {
		// A caller that waits for 100 Continue gets it from this read, which reads nothing. From
		// now on another goroutine reads, and a 1xx answer of the service may be being written.
		// (With chunks it would wait for the next one; but there the first have been read already.)
		_, _ = req.Body.Read(nil)
	}
	resp, token, err := t.send(req, body, token)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	if body.stream != nil { // the body has already left: the caller must send the call again
		t.Source.Refused(token)
		return resp, nil
	}
	fresh, err := t.Source.Replace(req.Context(), token)
	if errors.Is(err, tokens.ErrKept) {
		return resp, nil
	}
	dispose(resp)
	if err != nil {
		return nil, err
	}
	t.Replayed()
	resp, _, err = t.send(req, body, fresh)
	return resp, err
}

// send sends the call once, with token or a later one: reading the body and making a connection
// may take a while. It returns the one that was used. (If a connection turns out to be dead before
// a byte of the call has left, wire takes the next one.)
func (t *transport) send(req *http.Request, body *payload, token *tokens.Token) (*http.Response, *tokens.Token, error) {
	// Changed in place: ReverseProxy has made this request only for us.
	req.Header["Authorization"] = token.Header()
	body.attach(req)
	resp, err := t.Upstream.Do(req, wire.Call{Ready: func() (changed bool, err error) {
		before := token
		if token, err = t.Source.Latest(req.Context(), before); err != nil {
			return false, err
		}
		req.Header["Authorization"] = token.Header()
		return token != before, nil
	}})
	return resp, token, err
}

// dispose drains and closes an answer that nobody will read, so that its connection can be
// used again. It reads only a little, and not for long.
func dispose(resp *http.Response) {
	stop := time.AfterFunc(time.Second, func() { resp.Body.Close() })
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	stop.Stop()
	resp.Body.Close()
}
