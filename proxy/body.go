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
	over     atomic.Bool // the call has ended: nothing may be read any more
	payload  payload     // the body on its way out
}

func (b *callerBody) Read(p []byte) (int, error) {
	switch {
	case b.over.Load():
		return 0, http.ErrBodyReadAfterClose
	// After the end of the body net/http removes the deadline and watches the connection
	// for a caller that hangs up. A new deadline would look like a hang-up.
	case b.ended.Load():
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

// Close does nothing. net/http's own Close would wait for the rest of the body, and with it the
// answer.
func (b *callerBody) Close() error { return nil }

// end is called at the end of the call. It gives net/http its own body of r back: how much of that
// is left decides what net/http does next.
func (b *callerBody) end(r *http.Request) {
	b.over.Store(true)
	b.payload.release()
	if b.ReadCloser != nil {
		r.Body = b.ReadCloser
	}
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
