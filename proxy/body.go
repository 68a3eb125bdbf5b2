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

// once is a body that http.Transport can't send a second time by itself, as it
// would do with an empty one when a reused connection breaks.
type once struct{ io.Reader }

func (once) Close() error { return nil }

// attach makes the payload the body of req.
//
// GetBody stays nil, and Body is neither nil nor http.NoBody, also where there is
// none: the Transport would take such a call for repeatable (HTTP/1 by its method or
// an Idempotency-Key, HTTP/2 whenever the other side closes), and whether a call is
// sent again is decided in transport.go alone.
func (p *payload) attach(req *http.Request) {
	req.GetBody = nil
	req.ContentLength = p.length
	switch {
	case p.stream != nil:
		req.Body = once{p.stream}
	case len(p.more) > 0:
		req.Body = once{p.reader()}
	case len(p.bytes) > 0:
		// A plain in-memory reader, so that headers and body leave in one write.
		req.Body = io.NopCloser(bytes.NewReader(p.bytes))
	default:
		req.Body = once{bytes.NewReader(nil)}
		frameEmpty(req)
	}
}

// frameEmpty has a call without a body leave as it came. By itself the Transport, which
// can't know that the body is empty, would make chunks of it, and some services refuse
// those. It writes no Content-Length beside a body of unknown length; but what it takes
// for any other header, as this name is not spelt its way, it writes. (HTTP/2 has
// neither, and leaves both out.)
func frameEmpty(req *http.Request) {
	if len(req.TransferEncoding) > 0 {
		return
	}
	req.TransferEncoding = []string{"identity"}
	if _, ok := req.Header["Content-Length"]; ok {
		req.Header["content-length"] = []string{"0"}
	}
}
