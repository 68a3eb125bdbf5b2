package wire

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection. It carries one call at a time.
type conn struct {
	net.Conn // the socket, or TLS above it
	client   *Client
	to       destination
	socket   *socket
	tls      []*records    // what each TLS layer reads from, the lowest layer first
	from     *bufio.Reader // reads the answer; nil unless an answer is being read

	reused    bool
	idleSince time.Time
	maxIdle   time.Duration // how long it may be idle

	// Of the current call.
	budget  int64 // how many bytes may still be read
	readErr error // why nothing more can be read
}

// readSize is the size of the buffer for heads. Large parts of a body bypass it.
const readSize = 4 << 10

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readSize) }}

// withoutWaiting calls try. Reads inside try do not wait; they fail with nothingYet. If try returns
// false, withoutWaiting waits until there is something to read, and calls try again. (If the socket
// has no descriptor, it calls try only once.)
func (c *conn) withoutWaiting(try func(*conn) (done bool)) error {
	c.socket.noWait = true
	defer func() { c.socket.noWait = false }()
	if c.socket.raw == nil {
		try(c)
		return nil
	}
	return c.socket.raw.Read(func(fd uintptr) bool {
		c.socket.fd = fd
		return try(c)
	})
}

// awaitAnswer waits for the first byte of an answer. It takes a buffer only when there is something
// to read: a thousand connections may wait, but few read at the same time.
func (c *conn) awaitAnswer() error {
	if c.socket.raw == nil {
		c.readFirst()
	} else if err := c.withoutWaiting((*conn).readFirst); err != nil {
		c.readErr = err
	}
	return c.readErr
}

// readFirst reads the first bytes of an answer into a buffer. If there are none yet, it gives the
// buffer back and returns false.
func (c *conn) readFirst() bool {
	c.from = readers.Get().(*bufio.Reader)
	c.from.Reset(c)
	if _, err := c.from.Peek(1); err != error(nothingYet{}) {
		return true
	}
	c.readErr = nil
	c.dropReader()
	return false
}

func (c *conn) dropReader() {
	if poison {
		c.from.Reset(poisoned{})
	} else {
		c.from.Reset(nil)
		readers.Put(c.from)
	}
	c.from = nil
}

// poisoned is for tests: it panics if a call reads after its end.
type poisoned struct{}

func (poisoned) Read([]byte) (int, error) { panic("a call reads from its connection after its end") }

// Read is for c.from, within the budget.
func (c *conn) Read(p []byte) (int, error) {
	if c.budget <= 0 {
		c.readErr = errHeadLong
		return 0, errHeadLong
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.budget)])
	if n == 0 {
		c.readErr = err
		return 0, err
	}
	// TLS 1.2 may return the last bytes together with an error, if a close_notify or a part of one
	// follows them. The error is not lost: the next read returns it again.
	if len(p) > readSize && len(c.tls) > 0 && c.socket.raw != nil {
		n += c.readMore(p[n:])
	}
	c.budget -= int64(n)
	return n, nil
}

// readMore reads further TLS records of a body if they have arrived. TLS returns one at a time, and
// usher would pass each on with a write of its own. (If TLS returns an error, the next read returns
// it again.)
func (c *conn) readMore(p []byte) (n int) {
	_ = c.withoutWaiting(func(*conn) bool {
		for n < len(p) {
			m, err := c.Conn.Read(p[n:])
			n += m
			if err != nil {
				break
			}
		}
		return true
	})
	return n
}

// isQuiet reports whether an idle connection is open, and nothing has arrived on it except TLS's own
// messages.
func (c *conn) isQuiet() bool {
	c.budget = 1
	err := c.withoutWaiting(func(c *conn) bool { c.readFirst(); return true })
	for _, r := range c.tls {
		if !r.whole() {
			return false
		}
	}
	return err == nil && c.from == nil
}

// cutOff reports whether the connection has ended without TLS's close_notify. Anybody on the way can
// cut a connection, so that is not the end of an answer (RFC 9112, section 9.8).
func (c *conn) cutOff() bool {
	return c.readErr != nil && len(c.tls) > 0 && c.tls[len(c.tls)-1].ended
}

// hangUp closes an idle connection, over TLS with a close_notify.
func (c *conn) hangUp() { c.Conn.Close() }

// abandon closes a connection at once, whatever is in progress. Any goroutine may call it.
func (c *conn) abandon() { c.socket.Close() }

// deadline returns when the client's timeout ends if it begins now, or zero if there is none. (To set
// a deadline fails only on a closed connection, and then reads and writes fail, too. So nobody checks
// these errors.)
func (c *conn) deadline() (end time.Time) {
	if c.client.cfg.Timeout > 0 {
		end = time.Now().Add(c.client.cfg.Timeout)
	}
	return end
}

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
