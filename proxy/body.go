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

// bodyError marks what went wrong on the caller's side of the call.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

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

// Close does nothing. net/http's own Close would wait for the rest of the body, and with it the
// answer.
func (b *callerBody) Close() error { return nil }

// setPatience limits how long reads of a request may wait from now on.
func setPatience(w http.ResponseWriter, patience time.Duration) {
	// If it cannot be set (a test's recorder) there is no connection that could stall.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
}

// early reports whether an answer would be early: the body is still on its way to the service.
func (b *callerBody) early() bool { return b.payload.stream != nil && !b.ended.Load() }

// end is called at the end of the call. It gives net/http its own body of r back: how much of that
// is left decides what net/http does next. For that there is the time of drain.
func (b *callerBody) end(r *http.Request, drain time.Duration) {
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
		setPatience(b.writer, 0)
		b.reading.Wait()
		setPatience(b.writer, drain)
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

// Memory limits what all bodies that are kept for a second try, on all local ports, may
// take together. When it is used up further bodies stream; no call waits for it.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory returns a memory of so many bytes.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// take reserves n bytes and reports whether there was room for them.
func (m *Memory) take(n int64) bool {
	if m.used.Add(n) <= m.limit {
		return true
	}
	m.used.Add(-n)
	return false
}

const (
	// alwaysKept is the size up to which bodies are kept even if the memory is used up. Most
	// are smaller, and a few stalled uploads must not cost every caller the second try.
	alwaysKept = 16 << 10
	// pieceSize is the most that a larger body grows at a time.
	pieceSize = 64 << 10
)

// payload is the body of one call on its way out. It is in memory if it is within the
// replay limit, and can then be sent again. Otherwise it is a stream.
type payload struct {
	pieces [][]byte
	stream io.Reader // not nil: not kept
	length int64     // as http.Request.ContentLength

	memory   *Memory
	reserved atomic.Int64 // bytes of memory
}

// release gives back the memory. It does not clear the pieces: the first try may still be
// writing them.
func (p *payload) release() {
	if n := p.reserved.Swap(0); n > 0 {
		p.memory.used.Add(-n)
	}
}

// read reads a body of this length (-1: unknown) into memory if it is within limit and there is
// room for it. It reads to the end: only then does net/http notice a caller that hangs up.
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
	for have := int64(0); ; {
		piece, ok := p.next(have, most)
		if !ok {
			p.streamOn(body, length)
			return nil
		}
		// io.ReadFull would return io.ErrUnexpectedEOF both at the end and for a body that was cut.
		n, err := 0, error(nil)
		for n < len(piece) && err == nil {
			var m int
			m, err = body.Read(piece[n:])
			n += m
		}
		p.pieces = append(p.pieces, piece[:n])
		have += int64(n)
		switch {
		case have > most && length >= 0:
			return &bodyError{errors.New("it is longer than its Content-Length")}
		case have > most:
			p.streamOn(body, length)
			return nil
		case n == len(piece): // the next read returns err again
		case err == io.EOF:
			p.length = have
			return nil
		default:
			return err
		}
	}
}

// next returns a piece for what follows the first have bytes: as much again, within bounds. The
// last one has room for one byte more than the body may have, so that the read sees its end.
// Memory is reserved as the bytes arrive, not as the header announces them; if there is none, ok
// is false.
func (p *payload) next(have, most int64) (piece []byte, ok bool) {
	size := min(alwaysKept+1, most+1)
	if have > 0 {
		size = min(have, pieceSize, most-have+1)
		more := size
		if len(p.pieces) == 1 {
			more += have // the first piece has reserved nothing
		}
		if !p.memory.take(more) {
			return nil, false
		}
		p.reserved.Add(more)
	}
	return make([]byte, size), true
}

// reader returns a reader of the kept bytes, from the beginning.
func (p *payload) reader() io.Reader {
	if len(p.pieces) == 1 { // most are
		return bytes.NewReader(p.pieces[0])
	}
	var readers []io.Reader
	for _, piece := range p.pieces {
		readers = append(readers, bytes.NewReader(piece))
	}
	return io.MultiReader(readers...)
}

// streamOn makes a stream of the bytes that were read and the rest of body. Their memory is
// given back once they have been sent.
func (p *payload) streamOn(body io.Reader, length int64) {
	p.stream, p.length = io.MultiReader(p.reader(), atEnd(p.release), body), length
	p.pieces = nil
}

// atEnd is an empty reader that calls a func when it is read.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) { f(); return 0, io.EOF }
