package wire

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"
)

// sending is a body that is sent by its own goroutine while the caller waits for the answer.
type sending struct {
	c  *conn
	mu sync.Mutex // guards what follows, and the connection's deadlines
	// over says that everything was sent, or that nothing more will be, because of err.
	over bool
	err  error
	// heard says that the answer has begun, or that there will be none.
	heard bool
}

func (c *conn) send(out *outgoing) *sending {
	s := &sending{c: c}
	body, length := out.rest, out.length
	out.rest = nil // from here on the goroutine closes it
	go func() {
		defer body.Close()
		s.end(c.sendBody(body, length))
	}()
	return s
}

// end notes how the sending ended. If the body could not be read, the call ends. If the other side
// did not want the body, its answer may say why.
func (s *sending) end(bodyErr, writeErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.err = true, errors.Join(bodyErr, writeErr)
	switch {
	case bodyErr != nil || s.c.socket.fenced.Load():
		s.c.abandon()
	case s.heard:
		_ = s.c.SetWriteDeadline(time.Time{})
	case writeErr != nil:
		_ = s.c.SetReadDeadline(time.Now().Add(lastWord))
	default:
		s.c.await()
	}
}

// answered notes that the head of the answer has arrived, or err instead. It returns why the
// sending ended, if it has.
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

// done reports whether everything was sent.
func (s *sending) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over && s.err == nil
}

// sendBody sends a body in pieces, each within the client's timeout.
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

// chunk makes a chunk of the n bytes at buf[at:], in place. After the last one it adds the end of
// all chunks.
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
