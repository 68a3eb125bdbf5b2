package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

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
	var took taken
	req = took.watch(req)
	resp, err := t.send(req, body, token, &took)
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
	req = req.WithContext(req.Context()) // a copy: the first try may still be writing its own
	req.Header = req.Header.Clone()
	return t.send(req, body, fresh, &took)
}

// send sends the call once. More precisely: until one byte of it has left. A
// connection from the pool can turn out to be dead already, and then nothing is
// lost in taking the next one; this ends at the latest with one freshly dialled.
func (t *transport) send(req *http.Request, body *payload, token *tokens.Token, took *taken) (*http.Response, error) {
	// In place: ReverseProxy has made this request for us alone.
	req.Header["Authorization"] = token.Header()
	for {
		*took = taken{}
		body.attach(req)
		resp, err := t.upstream.RoundTrip(req)
		switch {
		case err == nil && resp.StatusCode < 200:
			// 1xx that is not the answer yet never comes here. net/http would panic over a
			// status below 100; and nobody asked to switch protocols.
			resp.Body.Close()
			return nil, fmt.Errorf("its status is %d", resp.StatusCode)
		case err == nil:
			return resp, nil
		case body.stream == nil && took.reused && took.untouched() && req.Context().Err() == nil:
			req = req.WithContext(req.Context()) // a copy: what failed is the Transport's
			continue
		}
		return nil, &upstreamError{err: err, connected: took.conn != nil}
	}
}

// dispose of an answer that nobody will read: drained, so that its connection can
// be used again, but neither for long nor to any length.
func dispose(resp *http.Response) {
	stop := time.AfterFunc(time.Second, func() { resp.Body.Close() })
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	stop.Stop()
	resp.Body.Close()
}

// taken is the connection that a try got, and what had been written to it before.
type taken struct {
	conn    net.Conn
	counted *countedConn
	before  int64
	reused  bool
}

// watch returns req such that t notes the connection of each of its tries. ReverseProxy
// has put a trace into the context, made for this call alone, so ours joins it: a
// second one, and a copy of the request to hold it, would cost as much as all the
// rest in here. Nothing else has seen the trace yet.
func (t *taken) watch(req *http.Request) *http.Request {
	ctx := req.Context()
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn == nil {
		trace.GotConn = t.note
		return req
	}
	return req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: t.note}))
}

// note is called by the Transport within RoundTrip, on the goroutine that called it.
func (t *taken) note(info httptrace.GotConnInfo) {
	t.conn, t.reused = info.Conn, info.Reused
	if t.counted = counted(info.Conn); t.counted != nil {
		t.before = t.counted.written.Load()
	}
}

// untouched says whether certainly nothing was written since. The Transport
// returns an error only after its writing goroutine has ended.
func (t *taken) untouched() bool {
	return t.counted != nil && t.counted.written.Load() == t.before
}

// upstreamError marks what went wrong between usher and the service.
type upstreamError struct {
	err       error
	connected bool
}

func (e *upstreamError) Error() string {
	switch text := e.err.Error(); {
	case errors.Is(e.err, io.EOF), strings.Contains(text, "server closed idle connection"):
		return "it closed the connection without an answer"
	case strings.Contains(text, "define Request.GetBody"):
		return "it refused the call on this connection (HTTP/2 GOAWAY or REFUSED_STREAM)"
	default:
		return text
	}
}
func (e *upstreamError) Unwrap() error { return e.err }

// timeout says whether the service was reached but did not answer in time. A
// timeout of the dialling means that it was not reached.
func (e *upstreamError) timeout() bool {
	var ne net.Error
	return e.connected && (errors.As(e.err, &ne) && ne.Timeout() || errors.Is(e.err, context.DeadlineExceeded))
}
