package wire

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// socket is a connection below TLS.
type socket struct {
	net.Conn
	raw     syscall.RawConn // nil where there is no descriptor to look at
	fence   func() error    // of the call under way; may be nil
	fenced  bool            // it has said no, after which nothing is to be sent or waited for
	looking bool            // a read does not wait
}

func newSocket(c net.Conn) *socket {
	s := &socket{Conn: c}
	if sc, ok := c.(syscall.Conn); ok {
		s.raw, _ = sc.SyscallConn() // fails only on a closed connection
	}
	return s
}

// Write asks the fence: here, as TLS makes several writes of a large one.
func (s *socket) Write(p []byte) (int, error) {
	if s.fence != nil {
		if err := s.fence(); err != nil {
			s.fenced = true
			return 0, err
		}
	}
	return s.Conn.Write(p)
}

func (s *socket) Read(p []byte) (int, error) {
	if s.looking {
		return s.readNow(p)
	}
	return s.Conn.Read(p)
}

// nothingYet is the error of a read that would have to wait. TLS can go on after it, as
// it is a temporary one.
type nothingYet struct{}

func (nothingYet) Error() string   { return "nothing has come yet" }
func (nothingYet) Timeout() bool   { return true }
func (nothingYet) Temporary() bool { return true }

// records is what TLS reads from, and knows whether that was whole records. What TLS has
// of a record that is still on its way nobody can see from outside, and it may be the
// beginning of something that nobody has asked for.
type records struct {
	net.Conn
	head [5]byte // of a record: type, version, length
	have int     // bytes of the head
	left int     // bytes of what follows it
}

func (r *records) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
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

// readWithin is readNow where a connection has no descriptor that could be asked.
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
