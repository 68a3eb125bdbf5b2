package wire

import (
	"bufio"
	"net"
	"time"
)

// conn is a connection, which carries one call at a time.
type conn struct {
	net.Conn // the socket, or TLS above it
	client   *Client
	where    place
	socket   *socket
	tls      []*records // what each layer of TLS reads from
	from     *bufio.Reader

	reused    bool
	idleSince time.Time

	// Of the call under way.
	budget  int64 // what may be read yet
	readErr error // why nothing more can be
}

// readSize is of the buffer that a connection keeps for heads. What is longer of a body
// goes past it.
const readSize = 4 << 10

// Read is for from.
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

// quiet says whether an idle connection may be used: it is open, and nothing has come on
// it but what TLS has to say to itself.
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

// hangUp ends an idle connection: over TLS, politely.
func (c *conn) hangUp() { c.Conn.Close() }

// abandon ends a connection at once, whatever is on its way. It may be called by anybody.
func (c *conn) abandon() { c.socket.Close() }

// write is one write, within the client's patience. What n counts has left; of a record
// of TLS that left in part nobody can read anything.
func (c *conn) write(p []byte) (n int, _ error) {
	if patience := c.client.cfg.Timeout; patience > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(patience)) // a closed one fails in the write
	}
	return c.Conn.Write(p)
}

// await gives the answer its time, now that all of the request has left.
func (c *conn) await() {
	var until time.Time
	if patience := c.client.cfg.Timeout; patience > 0 {
		until = time.Now().Add(patience)
	}
	_ = c.SetDeadline(until) // a closed one fails in the read
}
