package guard

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"
)

// Listener returns l, and checks the requests of each connection before net/http reads them. A
// request that can be read in two ways (see framing) gets a 400, and the connection is closed.
// With a TLS configuration the connections use TLS.
//
// The listener buffers and writes nothing. It cuts off a bad head and puts bytes after it that
// no parser accepts as a header. So net/http itself refuses the request with its own plain 400,
// after the answers to earlier requests.
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
	return &tlsConn{conn: conn{Conn: secured, log: l.log}, tls: secured, config: l.tls}, nil
}

// refusal completes a line so that it is malformed, whatever its beginning.
const refusal = "\x00\r\n:\r\n\r\n"

// badBody is what a handler reads of a badly framed body.
type badBody struct{}

func (badBody) Read([]byte) (int, error) { return 0, errors.New("the body is badly framed") }

// conn checks the requests of a connection while they are read.
type conn struct {
	net.Conn
	log     *slog.Logger
	framing framing
	instead io.Reader // after an objection: what net/http reads in the place of the caller's bytes
}

func (c *conn) Read(p []byte) (int, error) {
	if c.instead != nil {
		return c.instead.Read(p)
	}
	n, err := c.Conn.Read(p)
	good, objection := c.framing.scan(p[:n])
	if objection == "" {
		return n, err
	}
	c.log.Info("request refused unread", "why", objection, "from", c.RemoteAddr().String())
	c.instead = badBody{}
	if c.framing.inHead() {
		c.instead = strings.NewReader(refusal)
	}
	if good > 0 {
		return good, nil
	}
	return c.instead.Read(p)
}

// SetLinger works as that of *net.TCPConn, for code that has to reset the connection.
func (c *conn) SetLinger(seconds int) error {
	if tcp, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}

// CloseWrite exists because net/http uses it. If net/http does not read a body to its end, the
// caller learns at once that the answer is complete, not half a second later when the
// connection is closed.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// handshakePatience limits a client that does not read during the handshake.
const handshakePatience = 10 * time.Second

// tlsConn is a conn over TLS. net/http cannot see the *tls.Conn below it, so tlsConn does what
// net/http does for one: the handshake before the first read, within the time for a head, and
// the values of r.TLS.
type tlsConn struct {
	conn
	tls    *tls.Conn
	config *tls.Config // the listener's
	met    bool
	fail   error

	accepted *tls.Config // the last one that accepted the client's certificate
	until    time.Time   // for how long it does
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

// handshake always returns the same error if it fails. The reason is in the log, and net/http
// should not try to answer.
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

// ConnectionState exists so that net/http sets Request.TLS.
func (c *tlsConn) ConnectionState() tls.ConnectionState { return c.tls.ConnectionState() }
