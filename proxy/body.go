package proxy

import (
	"bytes"
	"io"
	"net/http"
	"sync"
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

	mu      sync.Mutex
	over    bool           // the call has ended: no read begins any more; guarded by mu
	reading sync.WaitGroup // the read under way
}

func (b *callerBody) Read(p []byte) (int, error) {
	// After the end of the body net/http removes the deadline and watches the connection
	// for a caller that hangs up. A new deadline would look like a hang-up.
	if b.ended.Load() {
		return 0, io.EOF
	}
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.reading.Add(1)
	b.wait(b.patience)
	b.mu.Unlock()
	n, err := b.ReadCloser.Read(p)
	b.reading.Done()
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

// wait limits how long reads may wait from now on.
func (b *callerBody) wait(patience time.Duration) {
	// If it cannot be set (a test's recorder) there is no connection that could stall.
	_ = http.NewResponseController(b.writer).SetReadDeadline(time.Now().Add(patience))
}

// early reports whether an answer would be early: the body is still on its way to the service.
func (b *callerBody) early() bool { return b.payload.stream != nil && !b.ended.Load() }

// end is called at the end of the call. It gives net/http its own body of r back: how much of that
// is left decides what net/http does next.
func (b *callerBody) end(r *http.Request) {
	b.payload.release()
	if b.ReadCloser == nil {
		return
	}
	r.Body = b.ReadCloser
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	if b.early() {
		// net/http would end a read that is under way, and then wait for the rest without a limit.
		b.wait(0)
		b.reading.Wait()
		b.wait(drainPatience)
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
