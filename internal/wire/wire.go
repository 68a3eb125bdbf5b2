// Package wire is usher's side of its connections to the billing service and to the
// receiver: an HTTP/1.1 client that carries one call at a time on a connection, and
// that knows of each call whether a byte of it has left.
//
// http.Transport can't tell that, and by itself sends some calls a second time. Here
// the way of a call is short enough to see what happens to it:
//
//	request.go   the head, and a body that fits beside it, become one piece of bytes
//	pool.go      an idle connection is looked at and taken, or
//	dial.go      a new one is made: TCP, a proxy's tunnel, TLS
//	exchange.go  the piece is written and the answer's head is read, by the caller's own
//	             goroutine; only a body that does not fit is sent by another (send.go)
//	answer.go    the answer's body; at its end the connection goes back to the pool
//	conn.go      a connection, and the look at it before it is used again
//	socket.go    what lies below TLS: the fence, and reads that do not wait
//
// The danger in all of it is that somebody gets the answer to somebody else's call. So
// a connection is used again only when its answer was read exactly to the end, nothing
// is left over, and nothing has come meanwhile.
//
// Nothing in here writes a log, and no error quotes what the other side has sent: it may
// be part of somebody's answer.
package wire

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Config is what a Client needs to know.
type Config struct {
	// Timeout is how long an answer's head may take after the request's last byte, and
	// how long each write may take. Zero: for ever, or as long as the call's context.
	Timeout time.Duration
	// TLS holds the roots to trust; nil: the system's.
	TLS *tls.Config
	// Proxy returns the proxy on the way to an address, if any: one that opens tunnels
	// (CONNECT, also for http), or speaks SOCKS5. It is asked when a connection is made.
	// Nil: there is none.
	Proxy func(*url.URL) (*url.URL, error)
	// MaxIdle is how many idle connections are kept. Zero: none.
	MaxIdle int
	// IdleTimeout is how long they are kept. Required where MaxIdle is set.
	IdleTimeout time.Duration
	// MaxHead is how long the heads of an answer may be, those of 1xx included. Zero:
	// 1 MiB.
	MaxHead int64
	// Dial makes a TCP connection. Nil: a net.Dialer's, within 10 s.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Client is an http.RoundTripper over connections of its own. It follows no redirect,
// adds no header but Host and those that frame the body, and sends no trailers. After a
// 101 there is no body, and the connection is closed.
type Client struct {
	cfg  Config
	pool pool
}

// New returns a client without connections.
func New(cfg Config) *Client {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: setUpTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	if cfg.MaxHead == 0 {
		cfg.MaxHead = 1 << 20
	}
	return &Client{cfg: cfg, pool: pool{most: cfg.MaxIdle, limit: cfg.IdleTimeout}}
}

// Call is what there is to say about a call beside its request; see With.
type Call struct {
	// Fence is asked before each write to the connection, at the last moment. Its error
	// ends the call, and the rest of it is not sent.
	Fence func() error
	// Repeatable says that it does no harm to send the call again where the other side
	// may have got it. That is done where a connection from the pool ends without a byte
	// of an answer.
	Repeatable bool
}

type callKey struct{}

// With returns a context for a request that is to be made as call says.
func With(ctx context.Context, call Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// RoundTrip sends req and returns its answer, whose body has to be read to its end or
// closed. A connection that could not be made is a *DialError.
func (cl *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	call, _ := ctx.Value(callKey{}).(Call)
	out, err := newOutgoing(req)
	if err != nil {
		return nil, err
	}
	defer out.free()
	for {
		c, err := cl.connection(ctx, req.URL)
		if err != nil {
			out.closeBody()
			return nil, err
		}
		resp, lost, err := c.exchange(req, out, call)
		if err == nil {
			return resp, nil
		}
		// The one rule about sending again. A connection from the pool may turn out to be
		// dead. Where nothing of the call has left, nothing is risked by taking the next,
		// and the last of those is a new one.
		if !lost || !c.reused || ctx.Err() != nil || call.fenced() {
			out.closeBody()
			return nil, err
		}
	}
}

func (c *Call) fenced() bool { return c.Fence != nil && c.Fence() != nil }

// connection returns an idle connection that is still good, or a new one.
func (cl *Client) connection(ctx context.Context, u *url.URL) (*conn, error) {
	where := place{u.Scheme, u.Host}
	for {
		c := cl.pool.take(where)
		if c == nil {
			return cl.dial(ctx, where, u)
		}
		if c.age(time.Now()) < cl.cfg.IdleTimeout && c.quiet() {
			c.reused = true
			return c, nil
		}
		c.hangUp()
	}
}

// CloseIdleConnections closes the idle connections, and has those in use closed when
// their calls are done, until there is another call.
func (cl *Client) CloseIdleConnections() { cl.pool.empty() }
