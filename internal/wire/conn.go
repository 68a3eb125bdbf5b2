package wire

import (
	"bufio"
	"net"
	"sync"
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
