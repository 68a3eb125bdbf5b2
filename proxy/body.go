package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// bodyError is an error of reading the caller's body: it is not the service's fault.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

// callerBody is the body as the caller sends it. It may take any time, as long as bytes keep
// arriving. Its errors are bodyErrors.
type callerBody struct {
	io.ReadCloser                     // net/http's body
	writer        http.ResponseWriter // of the same connection
	patience      time.Duration       // how long each read may wait
	ended         atomic.Bool         // it was read to its end
	payload       payload             // the body as usher sends it

	mu      sync.Mutex
	over    bool           // the call has ended: no read may begin; guarded by mu
	reading sync.WaitGroup // the read in progress
}

func (b *callerBody) Read(p []byte) (int, error) {
	// After the end of the body net/http removes the deadline, and reads from the connection to
	// notice a caller that hangs up. If that read met a new deadline, it would look like a hang-up.
	if b.ended.Load() {
		return 0, io.EOF
	}
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.reading.Add(1)
	setPatience(b.writer, b.patience)
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

// Close does nothing. net/http's own Close would wait for the rest of the body, and delay the answer.
func (b *callerBody) Close() error { return nil }

// setPatience limits how long reads of a request may wait from now on.
func setPatience(w http.ResponseWriter, patience time.Duration) {
	// It fails if there is no connection (in a test), and then no read can wait.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
}

// inTransit reports whether a body that is not kept is still on its way to the service.
func (b *callerBody) inTransit() bool { return b.payload.stream != nil && !b.ended.Load() }

// end is called at the end of the call. It gives net/http its own body back: net/http reads the rest
// of it, and then closes the connection or waits for the next request. It has the time of drain for
// that.
func (b *callerBody) end(r *http.Request, drain time.Duration) {
	b.payload.release()
	if b.ReadCloser == nil {
		return
	}
	r.Body = b.ReadCloser
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	if b.inTransit() {
		// End the read in progress. net/http would end it, too, but then wait for the rest without a
		// limit.
		setPatience(b.writer, 0)
		b.reading.Wait()
		setPatience(b.writer, drain)
	}
}

// attach makes the payload the body of req. A request without a body keeps the framing that the
// caller has chosen (Content-Length: 0, no length at all, or chunked), because some services
// demand what others refuse.
func (p *payload) attach(req *http.Request) {
	req.ContentLength = p.length
	switch {
	case p.stream != nil:
		req.Body = io.NopCloser(p.stream)
	case p.length > 0:
		req.Body = io.NopCloser(bytes.NewReader(p.kept))
	case len(req.TransferEncoding) > 0:
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(nil)), -1
	default:
		req.Body = nil
	}
}

// Memory limits how much memory all bodies that are kept take together. When it is used up, further
// bodies stream. No call waits for memory.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory returns a Memory of this many bytes.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// take reserves n bytes and reports whether there was room for them.
func (m *Memory) take(n int64) bool {
	if m.used.Add(n) <= m.limit {
		return true
	}
	m.used.Add(-n)
	return false
}

// alwaysKept is the size up to which bodies are kept even if the memory is used up. Most bodies
// are smaller, and a few stalled uploads must not take the second try from all callers.
const alwaysKept = 16 << 10

// payload is the body of one call as usher sends it. If it is within the limit, it is kept in memory
// and can be sent again. Otherwise it is a stream.
type payload struct {
	kept   []byte
	stream io.Reader // nil: the body is kept
	length int64     // as http.Request.ContentLength

	memory   *Memory
	reserved atomic.Int64 // how many bytes of memory it has taken
}

// release gives the memory back. It does not clear what is kept, because the first try may still be
// writing it.
func (p *payload) release() {
	if n := p.reserved.Swap(0); n > 0 {
		p.memory.used.Add(-n)
	}
}

// read reads a body of this length (-1: unknown) into memory, if it is within limit and there is
// memory for it. It reads until EOF, because only then does net/http notice a caller that hangs up.
func (p *payload) read(body io.ReadCloser, length, limit int64, memory *Memory) error {
	switch {
	case body == nil || body == http.NoBody:
		return nil
	case length > limit:
		p.stream, p.length = body, length
		return nil
	}
	p.memory = memory
	most := limit
	if length >= 0 {
		most = length
	}
	// There is room for one byte more than the body may have, so that a read meets its end.
	kept := make([]byte, 0, min(alwaysKept, most)+1)
	for {
		n, err := body.Read(kept[len(kept):cap(kept)])
		kept = kept[:len(kept)+n]
		switch {
		case int64(len(kept)) > most && length >= 0:
			return &bodyError{errors.New("it is longer than its Content-Length")}
		case int64(len(kept)) > most:
			p.streamOn(kept, body, length)
			return nil
		case err == io.EOF:
			p.kept, p.length = kept, int64(len(kept))
			return nil
		case err != nil:
			return err
		case len(kept) == cap(kept):
			// More memory is taken when the bytes arrive: those that the header announces may never arrive.
			size := min(2*int64(cap(kept)), most+1)
			more := size - p.reserved.Load()
			if !memory.take(more) {
				p.streamOn(kept, body, length)
				return nil
			}
			p.reserved.Add(more)
			kept = append(make([]byte, 0, size), kept...)
		}
	}
}

// streamOn makes a stream from the bytes that were read and the rest of body. When these bytes have
// been sent, it releases their memory.
func (p *payload) streamOn(begin []byte, body io.Reader, length int64) {
	p.stream, p.length = io.MultiReader(bytes.NewReader(begin), atEnd(p.release), body), length
}

// atEnd is an empty reader that calls a func when it is read.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) { f(); return 0, io.EOF }
