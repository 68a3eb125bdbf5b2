package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

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

// read reads the body of req into memory if it is within limit and there is room for it. It
// reads to the end: only then does net/http notice a caller that hangs up.
func (p *payload) read(req *http.Request, limit int64, memory *Memory) error {
	body, length := req.Body, req.ContentLength
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
		n, err := io.ReadFull(body, piece)
		p.pieces = append(p.pieces, piece[:n])
		have += int64(n)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF: // callerBody's own errors are others
			p.length = have
			return nil
		case err != nil:
			return &bodyError{err}
		case have > most && length >= 0:
			return &bodyError{errors.New("it is longer than its Content-Length")}
		case have > most:
			p.streamOn(body, length)
			return nil
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
