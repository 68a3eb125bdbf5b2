package wire

import (
	"bufio"
	"net"
	"time"
)

// conn is a connection. It carries one call at a time.
type conn struct {
	net.Conn // the socket, or TLS above it
	client   *Client
	where    place
	socket   *socket
	tls      []*records // the sources of each TLS layer
	from     *bufio.Reader

	reused    bool
	idleSince time.Time

	// For the current call.
	budget  int64 // how much may still be read
	readErr error // why nothing more can be read
}

// readSize is the size of a connection's buffer for heads. Large parts of a body bypass it.
const readSize = 4 << 10

// Read is called by from.
func (c *conn) Read(p []byte) (int, error) {
	if c.budget <= 0 {
		c.readErr = errHeadLong
		return 0, errHeadLong
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.budget)])
	c.budget -= int64(n)
	if err != nil {
		c.readErr = err
	}
	return n, err
}

// quiet reports whether an idle connection may be used: it is open, and nothing has arrived
// except TLS's own messages.
func (c *conn) quiet() bool {
	var one [1]byte
	c.socket.looking = true
	n, err := c.Conn.Read(one[:])
	c.socket.looking = false
	for _, r := range c.tls {
		if !r.whole() {
			return false
		}
	}
	return n == 0 && err == error(nothingYet{})
}

// cutOff reports whether the connection ended without TLS's close_notify. Anybody on the way can
// cut a connection, so that is not the end of an answer (RFC 9112, section 9.8).
func (c *conn) cutOff() bool { return len(c.tls) > 0 && c.tls[len(c.tls)-1].ended }

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
