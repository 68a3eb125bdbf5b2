package wire

import (
	"bufio"
	"errors"
	"io"
	"net/http/httputil"
	"sync"
	"time"
)

// sending is a body on its way: its own goroutine sends it while the caller waits for the answer.
type sending struct {
	c        *conn
	mu       sync.Mutex // guards what follows, and the deadline for reading
	over     bool       // nothing more will be sent: the body has ended, or there is an err
	err      error
	answered bool // the head of the answer has arrived, or will never arrive
}

func (c *conn) send(out *outgoing) *sending {
	_ = c.SetReadDeadline(time.Time{}) // the time for the answer begins when the whole body has left
	s := &sending{c: c}
	body, length := out.rest, out.length
	out.rest = nil // the goroutine closes it
	go func() {
		defer body.Close()
		s.end(c.sendBody(body, length))
	}()
	return s
}

// end notes how the sending ended. If the body could not be read, the call ends. If it could not be
// written, the other side may have sent an answer that says why, so the caller goes on reading.
func (s *sending) end(bodyErr, writeErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.err = true, errors.Join(bodyErr, writeErr)
	_ = s.c.SetWriteDeadline(time.Time{})
	switch {
	case bodyErr != nil || s.c.socket.fenced.Load():
		s.c.abandon()
	case s.answered:
	case writeErr != nil:
		_ = s.c.SetReadDeadline(time.Now().Add(lastWord))
	default:
		_ = s.c.SetReadDeadline(s.c.deadline())
	}
}

// noteAnswer notes that the head of the answer has arrived or, if err is not nil, never will. It
// returns the error of the sending so far.
func (s *sending) noteAnswer(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = true
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

// sendBody sends a body in pieces, each with one write and within the client's timeout. If the
// length is unknown, the pieces are chunks.
func (c *conn) sendBody(body io.Reader, length int64) (bodyErr, writeErr error) {
	out := bufio.NewWriterSize(c.Conn, pieceSize)
	pieces, end := io.Writer(out), ""
	if length < 0 {
		pieces, end = httputil.NewChunkedWriter(out), "0\r\n\r\n"
	}
	buf := make([]byte, pieceSize-len("ffff\r\n")-len("\r\n0\r\n\r\n")) // out has room for all of a piece
	for sent := int64(0); ; {
		n, err := body.Read(buf)
		sent += int64(n)
		atEnd := err == io.EOF
		switch {
		case err != nil && !atEnd:
			return err, nil
		case length >= 0 && (sent > length || atEnd && sent < length):
			return errLength, nil
		}
		_, _ = pieces.Write(buf[:n]) // Flush returns the error
		if atEnd {
			_, _ = out.WriteString(end)
		}
		_ = c.SetWriteDeadline(c.deadline())
		if err := out.Flush(); err != nil || atEnd {
			return nil, err
		}
	}
}
