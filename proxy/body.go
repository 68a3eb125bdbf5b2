package proxy

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// bodyError marks what went wrong on the caller's side of the call.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// callerBody is the body as it comes in. It may take as long as it wants but not
// stand still, and its errors are told from those of the connection upstream.
type callerBody struct {
	io.ReadCloser
	writer   http.ResponseWriter // of the connection that it comes from
	patience time.Duration
	ended    atomic.Bool // it was read to its end
	payload  payload     // what was made of it on its way out
}

// outgoing is the same body as ReverseProxy has it: wrapped, so that nobody reads from
// it when the call is over.
type outgoing struct {
	io.ReadCloser
	caller *callerBody
}

func (b *callerBody) Read(p []byte) (int, error) {
	// Once the end has been read net/http takes the deadline off, and watches the
	// connection for a caller that hangs up: a new deadline would look like one.
	if b.ended.Load() {
		return 0, io.EOF
	}
	// Where it can't be set (a test's recorder) there is no connection to hold up.
	_ = http.NewResponseController(b.writer).SetReadDeadline(time.Now().Add(b.patience))
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.ended.Store(true)
	case err != nil:
		err = &bodyError{err}
	}
	return n, err
}

// attach makes the payload the body of req. Without a body it leaves as it came, with a
// Content-Length or without one, or in chunks: there are services that insist on the one,
// and others that refuse the other.
func (p *payload) attach(req *http.Request) {
	req.ContentLength = p.length
	switch {
	case p.stream != nil:
		req.Body = io.NopCloser(p.stream)
	case len(p.more) > 0:
		req.Body = io.NopCloser(p.reader())
	case len(p.bytes) > 0:
		req.Body = io.NopCloser(bytes.NewReader(p.bytes))
	case len(req.TransferEncoding) > 0:
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(nil)), -1
	default:
		req.Body = nil
	}
}
