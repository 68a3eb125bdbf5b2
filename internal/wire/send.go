package wire

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"
)

// sending is a body that a goroutine of its own sends while the answer is waited for.
type sending struct {
	c  *conn
	mu sync.Mutex // guards what follows, and the connection's deadlines
	// over says that all was sent or nothing more will be, for err.
	over bool
	err  error
	// heard says that the answer has begun, or will not come.
	heard bool
}

func (c *conn) send(out *outgoing) *sending {
	s := &sending{c: c}
	body, length := out.rest, out.length
	out.rest = nil // closed from here on by the goroutine
	go func() {
		defer body.Close()
		s.end(c.sendBody(body, length))
	}()
	return s
}

// end notes how the sending ended. A body that could not be had ends the call; when the
// other side did not want it, it may have said why.
func (s *sending) end(bodyErr, writeErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.err = true, errors.Join(bodyErr, writeErr)
	switch {
	case bodyErr != nil || s.c.socket.fenced:
		s.c.abandon()
	case s.heard:
		_ = s.c.SetWriteDeadline(time.Time{})
	case writeErr != nil:
		_ = s.c.SetReadDeadline(time.Now().Add(lastWord))
	default:
		s.c.await()
	}
}

// answered notes that the head of the answer has come, or err instead, and returns why
// the sending ended, if it has.
func (s *sending) answered(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = true
	switch {
	case err != nil: // the connection is about to be closed
	case s.over:
		_ = s.c.SetDeadline(time.Time{})
	default:
		_ = s.c.SetReadDeadline(time.Time{})
	}
	return s.err
}

// done says whether all was sent.
func (s *sending) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over && s.err == nil
}

// sendBody sends a body in pieces, each within the client's patience.
func (c *conn) sendBody(body io.Reader, length int64) (bodyErr, writeErr error) {
	b := pieces.Get().(*bytes.Buffer)
	defer func() { giveBack(b) }()
	const sizeRoom, endRoom = len("ffff\r\n"), len("\r\n0\r\n\r\n")
	buf := b.AvailableBuffer()[:pieceSize]
	for left := length; left != 0; {
		room := buf[sizeRoom : pieceSize-endRoom]
		if left > 0 {
			room = room[:min(left, int64(len(room)))]
		}
		n, err := body.Read(room)
		piece := room[:n]
		if left > 0 {
			if left -= int64(n); left > 0 && err != nil {
				return bodyEnd(err), nil
			}
		} else {
			if err != nil && err != io.EOF {
				return err, nil
			}
			piece = chunk(buf, sizeRoom, n, err == io.EOF)
			if err == io.EOF {
				left = 0
			}
		}
		if len(piece) > 0 {
			if _, err := c.write(piece); err != nil {
				return nil, err
			}
		}
	}
	if length >= 0 {
		return expectEnd(body), nil
	}
	return nil, nil
}

// chunk puts the n bytes at buf[at:] into a chunk, in place, and the end of all chunks
// behind it where it is the last.
func chunk(buf []byte, at, n int, last bool) []byte {
	from, to := at, at
	if n > 0 {
		size := strconv.FormatInt(int64(n), 16) + "\r\n"
		from = at - len(size)
		copy(buf[from:], size)
		to = at + n + copy(buf[at+n:], "\r\n")
	}
	if last {
		to += copy(buf[to:], "0\r\n\r\n")
	}
	return buf[from:to]
}
