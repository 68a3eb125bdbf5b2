package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// bodyPatience is how long a caller's body may stand still.
const bodyPatience = 30 * time.Second

// bodyError marks what went wrong on the caller's side of the call.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// callerBody is the body as it comes in. It may take as long as it wants but not
// stand still, and its errors are told from those of the connection upstream.
type callerBody struct {
	io.ReadCloser
	control *http.ResponseController
	ended   atomic.Bool // it was read to its end
}

func (b *callerBody) Read(p []byte) (int, error) {
	// net/http takes the deadline off when it has read the body's end. Where it
	// can't be set (a test's recorder) there is no connection to hold up.
	_ = b.control.SetReadDeadline(time.Now().Add(bodyPatience))
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.ended.Store(true)
	case err != nil:
		err = &bodyError{err}
	}
	return n, err
}

// payload is the body of one call on its way out: in memory when it is within the
// replay limit, and so can be sent again, or a stream.
type payload struct {
	bytes  []byte
	stream io.Reader // not nil: beyond the limit
	length int64     // as http.Request.ContentLength
}

// readPayload reads the body of req if it is within limit.
func readPayload(req *http.Request, limit int64) (payload, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return payload{}, nil
	}
	if req.ContentLength > limit {
		return payload{stream: req.Body, length: req.ContentLength}, nil
	}
	// Memory is taken as the bytes arrive, not as the header promises them.
	var buf bytes.Buffer
	buf.Grow(int(min(max(req.ContentLength, 0), 32<<10)) + bytes.MinRead)
	n, err := buf.ReadFrom(io.LimitReader(req.Body, limit+1))
	if err != nil {
		return payload{}, asBodyError(err)
	}
	if n > limit {
		return payload{stream: io.MultiReader(&buf, req.Body), length: -1}, nil
	}
	return payload{bytes: buf.Bytes(), length: n}, nil
}

func asBodyError(err error) error {
	if already := new(bodyError); errors.As(err, &already) {
		return err
	}
	return &bodyError{err}
}

// once is a body that http.Transport can't send a second time by itself, as it
// would do with an empty one when a reused connection breaks.
type once struct{ io.Reader }

func (once) Close() error { return nil }

// attach makes the payload the body of req.
//
// GetBody stays nil, and Body is never nil where the Transport would take the
// call for repeatable (by its method, or for an Idempotency-Key): whether a call
// is sent again is decided in transport.go alone.
func (p *payload) attach(req *http.Request) {
	req.GetBody = nil
	req.ContentLength = p.length
	switch {
	case p.stream != nil:
		req.Body = once{p.stream}
	case len(p.bytes) > 0:
		// A plain in-memory reader, so that headers and body leave in one write.
		req.Body = io.NopCloser(bytes.NewReader(p.bytes))
	case repeatable(req):
		req.Body = once{bytes.NewReader(nil)}
	default:
		req.Body = http.NoBody
	}
}

// repeatable is net/http's notion of a request without a body that may be sent
// twice (Request.isReplayable).
func repeatable(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, xkey := req.Header["X-Idempotency-Key"]
	return key || xkey
}
