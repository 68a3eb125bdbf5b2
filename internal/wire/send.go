package wire

import (
	"errors"
	"io"
	"strconv"
	"sync"
	"time"
)

// sending is a body that is sent by its own goroutine while the caller waits for the answer.
type sending struct {
	c  *conn
	mu sync.Mutex // guards what follows, and the deadline for reading
	// over says that everything was sent, or that nothing more will be, because of err.
	over bool
	err  error
	// heard says that the answer has begun, or that there will be none.
	heard bool
}

func (c *conn) send(out *outgoing) *sending {
	_ = c.SetReadDeadline(time.Time{}) // the answer's time begins when the body has left
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
	_ = s.c.SetWriteDeadline(time.Time{})
	switch {
	case bodyErr != nil || s.c.socket.fenced.Load():
		s.c.abandon()
	case s.heard:
	case writeErr != nil:
		_ = s.c.SetReadDeadline(time.Now().Add(lastWord))
	default:
		_ = s.c.SetReadDeadline(s.c.limit())
	}
}

// answered notes that the head of the answer has arrived, or err instead. It returns why the
// sending ended, if it has.
func (s *sending) answered(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = true
	if err == nil {
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

// sendBody sends a body in pieces, each within the client's timeout. If the length is unknown, the
// pieces are chunks.
func (c *conn) sendBody(body io.Reader, length int64) (bodyErr, writeErr error) {
	const sizeRoom, endRoom = len("ffff\r\n"), len("\r\n0\r\n\r\n")
	buf := make([]byte, pieceSize)
	for sent := int64(0); ; {
		n, err := body.Read(buf[sizeRoom : pieceSize-endRoom])
		sent += int64(n)
		end := err == io.EOF
		switch {
		case err != nil && !end:
			return err, nil
		case length >= 0 && (sent > length || end && sent < length):
			return errLength, nil
		}
		piece := buf[sizeRoom : sizeRoom+n]
		if length < 0 {
			piece = chunk(buf, sizeRoom, n, end)
		}
		if len(piece) > 0 {
			_ = c.SetWriteDeadline(c.limit())
			if _, err := c.Conn.Write(piece); err != nil {
				return nil, err
			}
		}
		if end {
			return nil, nil
		}
	}
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
