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
	where    place
	socket   *socket
	tls      []*records    // the sources of each TLS layer
	from     *bufio.Reader // nil unless an answer is being read

	reused    bool
	idleSince time.Time
	lasts     time.Duration // how long it may be idle

	// For the current call.
	budget  int64 // how much may still be read
	readErr error // why nothing more can be read
}

// readSize is the size of the buffer for heads. Large parts of a body bypass it.
const readSize = 4 << 10

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readSize) }}

// look calls try, in which reads do not wait. If try returns false, look waits until there is
// something to read, and calls it again. (Without a descriptor it does not.)
func (c *conn) look(try func(*conn) (done bool)) error {
	c.socket.looking = true
	defer func() { c.socket.looking = false }()
	if c.socket.raw == nil {
		try(c)
		return nil
	}
	return c.socket.raw.Read(func(fd uintptr) bool {
		c.socket.fd = fd
		return try(c)
	})
}

// await waits for the first byte of an answer. It takes a buffer only when there is something to
// put into it: a thousand connections may wait, but few read.
func (c *conn) await() error {
	if c.socket.raw == nil {
		c.begin()
	} else if err := c.look((*conn).begin); err != nil {
		c.readErr = err
	}
	return c.readErr
}

// begin reads the first bytes of an answer. If there are none yet, it gives the buffer back and
// returns false.
func (c *conn) begin() bool {
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

// Read is called by from.
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
	// TLS 1.2 returns an error beside the last bytes if a farewell follows them, or a part of one. The
	// next read returns it again.
	if len(p) > readSize && len(c.tls) > 0 && c.socket.raw != nil {
		n += c.more(p[n:])
	}
	c.budget -= int64(n)
	return n, nil
}

// more reads further TLS records of a body if they have arrived. TLS returns one at a time, and
// each would be passed on with a write of its own. (The next read will return an error of TLS.)
func (c *conn) more(p []byte) (n int) {
	_ = c.look(func(*conn) bool {
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

// quiet reports whether an idle connection may be used: it is open, and nothing has arrived
// except TLS's own messages.
func (c *conn) quiet() bool {
	c.budget = 1
	err := c.look(func(c *conn) bool { c.begin(); return true })
	for _, r := range c.tls {
		if !r.whole() {
			return false
		}
	}
	return err == nil && c.from == nil
}

// cutOff reports whether an answer has met the end of its connection, which came without TLS's
// close_notify. Anybody on the way can cut a connection, so that is not the end of an answer (RFC
// 9112, section 9.8).
func (c *conn) cutOff() bool {
	return c.readErr != nil && len(c.tls) > 0 && c.tls[len(c.tls)-1].ended
}

// hangUp closes an idle connection, over TLS with a close_notify.
func (c *conn) hangUp() { c.Conn.Close() }

// abandon closes a connection at once, whatever is in progress. Any goroutine may call it.
func (c *conn) abandon() { c.socket.Close() }

// limit returns when the client's timeout ends if it begins now. (Deadlines need no check for
// errors: they can be set unless the connection is closed, and then reads and writes fail.)
func (c *conn) limit() (end time.Time) {
	if c.client.cfg.Timeout > 0 {
		end = time.Now().Add(c.client.cfg.Timeout)
	}
	return end
}
