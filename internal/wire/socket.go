package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// socket is a connection below TLS.
type socket struct {
	net.Conn
	raw    syscall.RawConn // the descriptor; nil: none
	fence  func() error    // of the current call; may be nil
	fenced atomic.Bool     // the fence refused: nothing more is sent or awaited
	broken atomic.Bool     // a read or a write failed, and not because of a timeout
	noWait bool            // reads do not wait
	fd     uintptr         // of raw, while noWait is set
}

// Write asks the fence first. It does so below TLS, because TLS splits a large write into several.
func (s *socket) Write(p []byte) (int, error) {
	if s.fence != nil {
		if err := s.fence(); err != nil {
			s.fenced.Store(true)
			return 0, err
		}
	}
	n, err := s.Conn.Write(p)
	return n, s.note(err)
}

func (s *socket) Read(p []byte) (n int, err error) {
	switch {
	case !s.noWait:
		n, err = s.Conn.Read(p)
	case s.raw != nil:
		n, err = readNow(s.fd, p)
	default:
		n, err = s.readWithin(p, time.Millisecond)
	}
	return n, s.note(err)
}

func (s *socket) note(err error) error {
	if err != nil && !isTimeout(err) {
		s.broken.Store(true)
	}
	return err
}

// nothingYet is the error of a read that would have to wait. It is a temporary timeout, so that TLS
// can go on after it.
type nothingYet struct{}

func (nothingYet) Error() string   { return "nothing has come yet" }
func (nothingYet) Timeout() bool   { return true }
func (nothingYet) Temporary() bool { return true }

// records is what TLS reads from. It knows whether TLS has read only complete records. If TLS held a
// part of a record, no other check would notice. That part may be the beginning of an answer that nobody
// asked for.
type records struct {
	net.Conn
	head  [5]byte // of the current record: type, version, length
	have  int     // how many bytes of the head have been read
	left  int     // how many bytes of the record after its head have not been read
	ended bool    // the connection has ended
}

func (r *records) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.ended = err == io.EOF
	for p = p[:n]; len(p) > 0; {
		if r.left > 0 {
			skip := min(r.left, len(p))
			r.left, p = r.left-skip, p[skip:]
			continue
		}
		r.head[r.have] = p[0]
		p = p[1:]
		if r.have++; r.have == len(r.head) {
			r.have, r.left = 0, int(r.head[3])<<8|int(r.head[4])
		}
	}
	return n, err
}

func (r *records) whole() bool { return r.have == 0 && r.left == 0 }

// readWithin is readNow for a connection without a descriptor: it waits only a moment.
func (s *socket) readWithin(p []byte, patience time.Duration) (int, error) {
	if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	n, err := s.Conn.Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nothingYet{}
	}
	if clear := s.SetReadDeadline(time.Time{}); err == nil {
		err = clear
	}
	return n, err
}
