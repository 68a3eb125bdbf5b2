package guard

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Listener returns a listener that accepts the connections of l and checks their requests before
// net/http reads them. A request that can be read in two ways (see framing) gets a 400, and the
// connection is closed. With a TLS configuration the connections use TLS. A connection whose other end
// takes nothing of an answer for as long as patience is closed (see socket); once the listener is closed,
// patience is short.
//
// The listener does not buffer what it reads, and does not answer. It cuts off a bad head and
// continues it with bytes that no parser accepts as a header. So net/http refuses the request with
// its own plain 400, after the answers to earlier requests.
func Listener(l net.Listener, config *tls.Config, patience time.Duration, log *slog.Logger) net.Listener {
	return &listener{Listener: l, tls: config, patience: patience, heads: heads, log: log}
}

type listener struct {
	net.Listener
	tls      *tls.Config
	patience time.Duration
	heads    *memory
	closed   atomic.Bool
	log      *slog.Logger
}

// Close is what a server calls first when it shuts down.
func (l *listener) Close() error {
	l.closed.Store(true)
	return l.Listener.Close()
}

func (l *listener) patienceNow() time.Duration {
	if l.closed.Load() {
		return min(l.patience, lastPatience)
	}
	return l.patience
}

func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	k := askKernel(accepted)
	raw := &socket{
		Conn: accepted, patience: l.patienceNow, kernel: k, acked: k.acked,
		records: holding{of: l.heads}, log: l.log,
	}
	if l.tls == nil {
		return &conn{Conn: raw, raw: raw, head: holding{of: l.heads}, log: l.log}, nil
	}
	secured := tls.Server(raw, l.tls)
	return &tlsConn{
		conn: conn{Conn: secured, raw: raw, head: holding{of: l.heads}, log: l.log},
		tls:  secured, config: l.tls,
	}, nil
}

// malformed completes any beginning of a line to a line that net/http refuses.
const malformed = "\x00\r\n:\r\n\r\n"

// badBody is the rest of a badly framed body, as a handler sees it.
type badBody struct{}

func (badBody) Read([]byte) (int, error) { return 0, errors.New("the body is badly framed") }

// conn checks the requests of a connection while they are read.
type conn struct {
	net.Conn // raw, or TLS over it
	raw      *socket
	log      *slog.Logger
	framing  framing
	head     holding
	instead  io.Reader // after an objection: net/http reads from it, not from the connection
}

func (c *conn) Read(p []byte) (int, error) {
	if c.instead != nil {
		return c.instead.Read(p)
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.raw.unused, c.raw.greeted = 0, true
	}
	good, objection := c.framing.scan(p[:n])
	if !c.head.head(c.framing.headBytes()) {
		c.log.Info("connection closed: the heads of other requests use up the memory for heads",
			"from", c.RemoteAddr().String())
		return 0, &net.OpError{Op: "read", Err: errCrowded} // net/http does not answer after such an error
	}
	if objection == "" {
		return n, err
	}
	c.log.Info("ambiguous request refused", "why", objection, "from", c.RemoteAddr().String())
	c.instead = badBody{}
	if c.framing.inHead() {
		c.instead = strings.NewReader(malformed)
	}
	if good > 0 {
		return good, nil
	}
	return c.instead.Read(p)
}

// changed gives memory back when a request is answered, and when the connection has ended.
func (c *conn) changed(state http.ConnState) {
	switch state {
	case http.StateIdle:
		c.head.release(false)
	case http.StateClosed, http.StateHijacked:
		c.head.release(true)
		c.raw.records.release(true)
	}
}

// SetLinger is that of the TCP connection; see ResetOnClose.
func (c *conn) SetLinger(seconds int) error {
	if tcp, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}

// CloseWrite exists because net/http calls it when it has answered without reading a body to its
// end. So the caller learns at once that the answer is complete, not half a second later when
// net/http closes the connection.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// handshakePatience limits a client that does not read during the handshake.
const handshakePatience = 10 * time.Second

// tlsConn is a conn over TLS. net/http cannot see the *tls.Conn inside it. So tlsConn itself does
// what net/http does for a *tls.Conn: the handshake before the first read, within the time for a
// head, and the values of r.TLS.
type tlsConn struct {
	conn
	tls    *tls.Conn
	config *tls.Config // the listener's

	handshaken   bool
	handshakeErr error

	accepted      *tls.Config // the last configuration that accepted the client's certificate
	acceptedUntil time.Time   // when a certificate of its chain expires
}

func (c *tlsConn) Read(p []byte) (int, error) {
	if !c.handshaken {
		c.handshaken, c.handshakeErr = true, c.handshake()
	}
	if c.handshakeErr != nil {
		return 0, c.handshakeErr
	}
	return c.conn.Read(p)
}

// handshake returns io.EOF for every failure, so that net/http does not try to answer. The reason
// is in the log.
func (c *tlsConn) handshake() error {
	// The deadline for reads is already set, by net/http.
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

// Close does not wait for TLS's goodbye. That takes up to five seconds if the other end does not read, and a
// server that shuts down closes its idle connections one after the other.
func (c *tlsConn) Close() error {
	go c.tls.Close()
	return nil
}

// ConnectionState exists so that net/http sets Request.TLS.
func (c *tlsConn) ConnectionState() tls.ConnectionState { return c.tls.ConnectionState() }
