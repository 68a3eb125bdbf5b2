package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"

	"usher/internal/wire"
	"usher/tokens"
)

// transport adds the token and sends the call. On a 401 it renews the token and sends the call again.
// It is a RoundTripper because a RoundTripper can return an error: if there is no token, no request
// leaves.
type transport struct{ Config }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// First the token, then the body: if there is no token, the caller gets an error at once.
	token, err := t.Source.Token(req.Context())
	if err != nil {
		return nil, err
	}
	body := new(payload)
	if caller, ok := req.Body.(*callerBody); ok {
		body = &caller.payload // callerBody.end releases it
	}
	if err := body.read(req.Body, req.ContentLength, t.ReplayLimit, t.ReplayMemory); err != nil {
		return nil, err
	}
	if body.stream != nil && body.length >= 0 {
		// If the caller waits for 100 Continue, net/http sends it on this read, which reads nothing. Later another
		// goroutine reads the body, and a 1xx answer of the service may be written at the same time. (Of a body in
		// chunks the first have been read already.)
		_, _ = req.Body.Read(nil)
	}
	resp, token, err := t.send(req, body, token)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	if body.stream != nil { // usher no longer has the body: only the caller can send the call again
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

// send sends the call once. It uses token, or a later one if token has expired before the call
// leaves: making a connection may take a while. It returns the token that it has used. (If a connection
// turns out to be dead before a byte of the call has left, package wire takes the next one.)
func (t *transport) send(req *http.Request, body *payload, token *tokens.Token) (*http.Response, *tokens.Token, error) {
	// req may be changed: ReverseProxy has made it for this call only.
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

// dispose closes an answer that nobody needs. It reads the rest first, so that the connection can be
// used again, but only a little of it, and not for long.
func dispose(resp *http.Response) {
	stop := time.AfterFunc(time.Second, func() { resp.Body.Close() })
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	stop.Stop()
	resp.Body.Close()
}
