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

// callerBody is the body as it arrives. It may take as long as it wants but must not
// stand still. Its errors are marked, so that they are not blamed on the service.
type callerBody struct {
	io.ReadCloser
	writer   http.ResponseWriter // of the connection that it comes from
	patience time.Duration
	ended    atomic.Bool // it was read to its end
	payload  payload     // the body on its way out
}

// outgoing is the same body as ReverseProxy passes it on: wrapped, so that nothing reads
// from it after the call has ended.
type outgoing struct {
	io.ReadCloser
	caller *callerBody
}

func (b *callerBody) Read(p []byte) (int, error) {
	// After the end of the body net/http removes the deadline and watches the connection
	// for a caller that hangs up. A new deadline would look like a hang-up.
	if b.ended.Load() {
		return 0, io.EOF
	}
	// If it cannot be set (a test's recorder) there is no connection that could stall.
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

// attach makes the payload the body of req. A request without a body keeps its framing:
// with a Content-Length, without one, or chunked. Some services insist on one form, others
// refuse it.
func (p *payload) attach(req *http.Request) {
	req.ContentLength = p.length
	switch {
	case p.stream != nil:
		req.Body = io.NopCloser(p.stream)
	case p.length > 0:
		req.Body = io.NopCloser(p.reader())
	case len(req.TransferEncoding) > 0:
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(nil)), -1
	default:
		req.Body = nil
	}
}
