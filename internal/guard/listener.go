package guard

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"
)

// Listener returns l with a look at each connection's requests before net/http has
// them: one that could be read in two ways (see framing) is answered with 400, and
// the connection closed. With a TLS configuration the connections are TLS.
//
// Nothing is buffered and nothing is written here. A head that is objected to is
// broken off, with something after it that no parser takes for a header, so that
// net/http itself refuses it with its own plain 400: in turn, after the answers to what
// came before it.
func Listener(l net.Listener, config *tls.Config, log *slog.Logger) net.Listener {
	return &listener{l, config, log}
}

type listener struct {
	net.Listener
	tls *tls.Config
	log *slog.Logger
}

func (l *listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.tls == nil {
		return &conn{Conn: inner, log: l.log}, nil
	}
	secured := tls.Server(inner, l.tls)
	return &tlsConn{conn: conn{Conn: secured, log: l.log}, tls: secured}, nil
}

// refusal completes a line that was begun so that it is malformed, whatever it was.
const refusal = "\x00\r\n:\r\n\r\n"

// errFraming is for the handler that reads a badly framed body.
var errFraming = errors.New("the body is badly framed")

// conn is a connection whose requests are looked at as they are read.
type conn struct {
	net.Conn
	log       *slog.Logger
	framing   framing
	objection string // to what was read; then nothing more is
	inject    string // what is to be read before the end, once objected to
	end       error  // then
}

func (c *conn) Read(p []byte) (int, error) {
	if c.objection != "" {
		return c.last(p)
	}
	n, err := c.Conn.Read(p)
	good, objection := c.framing.scan(p[:n])
	if objection == "" {
		return n, err
	}
	c.log.Info("request refused unread", "why", objection, "from", c.RemoteAddr().String())
	c.objection, c.end = objection, errFraming
	if c.framing.inHead() {
		c.inject, c.end = refusal, io.EOF
	}
	if good > 0 {
		return good, nil
	}
	return c.last(p)
}

// last reads what comes after the last good byte.
func (c *conn) last(p []byte) (int, error) {
	if c.inject == "" {
		return 0, c.end
	}
	n := copy(p, c.inject)
	c.inject = c.inject[n:]
	return n, nil
}

// SetLinger is what *net.TCPConn has, for those who have to break off an answer.
func (c *conn) SetLinger(seconds int) error {
	if tcp, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}

// CloseWrite is what net/http looks for: where it does not read a body to its end, the
// caller learns at once that its answer is whole, and not when the connection is closed
// half a second later.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// handshakePatience is for a client that does not read what a handshake sends.
const handshakePatience = 10 * time.Second

// tlsConn is a conn over TLS. net/http can't see the *tls.Conn below it, so what it
// does for one is done here: the handshake, before the first read and within the
// time for a head, and what r.TLS is made of.
type tlsConn struct {
	conn
	tls  *tls.Conn
	met  bool
	fail error
}

func (c *tlsConn) Read(p []byte) (int, error) {
	if !c.met {
		c.met = true
		c.fail = c.handshake()
	}
	if c.fail != nil {
		return 0, c.fail
	}
	return c.conn.Read(p)
}

// handshake ends with an error, always the same, when it fails: what it was is in
// the log, and net/http should not try to answer.
func (c *tlsConn) handshake() error {
	// net/http has set the deadline for reading.
	_ = c.SetWriteDeadline(time.Now().Add(handshakePatience))
	err := c.tls.Handshake()
	if err == nil {
		return c.SetWriteDeadline(time.Time{})
	}
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil {
		_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nThis port speaks HTTPS.\n")
	}
	c.log.Info("TLS handshake failed", "why", err.Error(), "from", c.RemoteAddr().String())
	return io.EOF
}

// ConnectionState has net/http set Request.TLS.
func (c *tlsConn) ConnectionState() tls.ConnectionState { return c.tls.ConnectionState() }
