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
	// firstPiece is the first piece of a body of unknown length.
	firstPiece = 4 << 10
)

// payload is the body of one call on its way out. It is in memory if it is within the
// replay limit, and can then be sent again. Otherwise it is a stream.
type payload struct {
	bytes  []byte    // most bodies are one piece
	more   [][]byte  // what follows it
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

// read reads the body of req into memory if it is within limit and there is room for it.
func (p *payload) read(req *http.Request, limit int64, memory *Memory) error {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	p.memory = memory
	switch length := req.ContentLength; {
	case length > limit:
		p.stream, p.length = req.Body, length
		return nil
	case length >= 0 && length <= alwaysKept:
		return p.readSmall(req.Body, int(length))
	default:
		return p.readLarge(req.Body, length, limit)
	}
}

// readSmall reads a body of this length to its end. Only after the end does net/http notice
// a caller that hangs up.
func (p *payload) readSmall(body io.Reader, length int) error {
	data := make([]byte, length+1) // room to see the end
	for n := 0; ; {
		m, err := body.Read(data[n:])
		switch n += m; {
		case n > length:
			return errTooLong
		case err == io.EOF:
			p.bytes, p.length = data[:n], int64(n)
			return nil
		case err != nil:
			return asBodyError(err)
		}
	}
}

var errTooLong = &bodyError{errors.New("it is longer than its Content-Length")}

// readLarge reads a body in pieces. Memory is reserved as the bytes arrive, not as the header
// announces them, and no piece is larger than the rest of the body. length is -1 if the header
// does not say.
func (p *payload) readLarge(body io.Reader, length, limit int64) error {
	most := limit
	if length >= 0 {
		most = length
	}
	for have := int64(0); ; {
		size := nextPiece(have, most, length >= 0)
		if have > alwaysKept && !p.take(have, size) {
			p.streamOn(body, length)
			return nil
		}
		piece := make([]byte, size)
		n, err := io.ReadFull(body, piece)
		p.add(piece[:n])
		have += int64(n)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			p.length = have
			return nil
		case err != nil:
			return asBodyError(err)
		case have <= most: // there is more, or the end has not been read yet
		case length >= 0:
			return errTooLong
		default:
			p.streamOn(body, length)
			return nil
		}
	}
}

// nextPiece returns how much to read after have bytes: as much again, within bounds. The last
// piece of what is always kept, and the last piece of all, have one byte more than the body
// may have, so that the read sees its end.
func nextPiece(have, most int64, known bool) int64 {
	size := min(have, pieceSize)
	switch {
	case have == 0 && !known:
		size = firstPiece
	case have == 0 || have <= alwaysKept && have+size > alwaysKept:
		size = alwaysKept + 1 - have
	}
	return min(size, most-have+1)
}

// take reserves memory for a piece and, when the body outgrows alwaysKept, for the pieces
// before it.
func (p *payload) take(have, size int64) bool {
	if p.reserved.Load() == 0 {
		size += have
	}
	if !p.memory.take(size) {
		return false
	}
	p.reserved.Add(size)
	return true
}

func (p *payload) add(piece []byte) {
	switch {
	case len(piece) == 0:
	case p.bytes == nil:
		p.bytes = piece
	default:
		p.more = append(p.more, piece)
	}
}

// reader returns a reader of the kept bytes, from the beginning.
func (p *payload) reader() io.Reader {
	readers := []io.Reader{bytes.NewReader(p.bytes)}
	for _, piece := range p.more {
		readers = append(readers, bytes.NewReader(piece))
	}
	return io.MultiReader(readers...)
}

// streamOn makes a stream of the bytes that were read and the rest of body. Their memory is
// given back once they have been sent.
func (p *payload) streamOn(body io.Reader, length int64) {
	p.stream, p.length = io.MultiReader(p.reader(), atEnd(p.release), body), length
	p.bytes, p.more = nil, nil
}

// atEnd is an empty reader that calls a func when it is read.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) { f(); return 0, io.EOF }

func asBodyError(err error) error {
	if already := new(bodyError); errors.As(err, &already) {
		return err
	}
	return &bodyError{err}
}
