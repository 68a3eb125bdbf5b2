// Package wire is usher's HTTP/1.1 client for the billing service and the receivers. It carries
// one call at a time on a connection, and knows for each call whether a byte of it has left.
// http.Transport does not know that, and sends some calls a second time by itself.
//
// A call takes this way:
//
//	pool.go      takes an idle connection, or
//	dial.go      makes a new one: TCP, a proxy's tunnel, TLS
//	request.go   makes one piece of bytes from the head and a body that fits beside it
//	exchange.go  writes the piece, sends the rest of a large body on a goroutine of its own, reads the answer, and
//	             returns the connection to the pool at its end
//	conn.go      is a connection: its reads, the check before it is used again; and below TLS the fence, and reads
//	             that do not wait
//
// The hazard is that a caller gets the answer to somebody else's call. So a connection is used
// again only if its answer was read exactly to the end, nothing is left over, and nothing has
// arrived since.
//
// The package writes no log. No error quotes what the other side has sent, because that may be
// part of somebody's answer.
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
	// Timeout is how long an answer's head may take after the request, and how long each
	// write may take. (If a request is one write, it is the time for both together: such a write
	// does not wait.) Zero: only the call's context limits them.
	Timeout time.Duration
	// TLS has the root certificates to trust. Nil: those of the system.
	TLS *tls.Config
	// Proxy returns the proxy for an address, or nil: an HTTP proxy, which is asked for a tunnel
	// (CONNECT, also for http), or a SOCKS5 proxy. It is called for each new connection. Nil: no
	// proxy.
	Proxy func(*url.URL) (*url.URL, error)
	// MaxIdle is how many idle connections are kept. Zero: none.
	MaxIdle int
	// IdleTimeout is how long they are kept. Required if MaxIdle is set.
	IdleTimeout time.Duration
	// MaxHead limits the length of an answer's head, including the 1xx heads before it. Zero: 1 MiB.
	MaxHead int64
	// Dial makes a TCP connection. Nil: that of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Client is an http.RoundTripper with its own connections. It follows no redirects, adds no
// headers except Host and those that frame the body, and sends no trailers. Its answers have a
// status of 200 or more.
type Client struct {
	cfg  Config
	pool pool
}

// New returns a client without connections.
func New(cfg Config) *Client {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{KeepAlive: 15 * time.Second, ControlContext: checkAvoided}).DialContext
	}
	if cfg.MaxHead == 0 {
		cfg.MaxHead = 1 << 20
	}
	return &Client{cfg: cfg, pool: pool{maxIdle: cfg.MaxIdle, idleTimeout: cfg.IdleTimeout}}
}

// Call has options for a call, besides its request.
type Call struct {
	// Ready is called right before the first write. Making a connection and reading a small body may
	// have taken a while, and a token may have expired meanwhile. Ready may change the request's
	// header, and then returns true. If it returns an error, the call ends with it, and nothing is
	// sent.
	Ready func() (changed bool, err error)
	// Fence is called right before each write to the connection. If it returns an error, the
	// call ends, and the rest of it is not sent.
	Fence func() error
	// New demands a new connection, not one from the pool.
	New bool
}

type callKey struct{}

// With returns a context for a request that RoundTrip sends with the options of call.
func With(ctx context.Context, call Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// RoundTrip is Do with the options of the request's context; see With.
func (cl *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	call, _ := req.Context().Value(callKey{}).(Call)
	return cl.Do(req, call)
}

// Do sends req and returns its answer. The caller must read the body to its end or close it. If no
// connection could be made, the error is a *DialError. If a connection from the pool ended without a
// byte of an answer, it is a *StaleError.
func (cl *Client) Do(req *http.Request, call Call) (*http.Response, error) {
	ctx := req.Context()
	out := newOutgoing(req)
	defer out.drop()
	broken := "" // the address of a new connection that broke, if there was one
	for {
		c, err := cl.connection(ctx, req.URL, call.New, broken)
		if err != nil {
			return nil, err
		}
		if err := out.write(req, call.Ready); err != nil {
			cl.pool.put(c)
			return nil, err
		}
		if c.reused && !c.usable(time.Now()) {
			c.hangUp()
			continue
		}
		resp, unsent, err := c.exchange(req, out, call)
		// This is the only place that sends a call again. A connection from the pool may turn out
		// to be dead, and a new one may break. If nothing of the call has left, it is safe to take
		// the next connection. If a second new one breaks, the call fails.
		if !unsent || ctx.Err() != nil || !c.reused && broken != "" {
			return resp, err
		}
		if !c.reused {
			broken = c.socket.RemoteAddr().String()
		}
	}
}

// connection returns an idle connection, which may be dead, or a new one.
func (cl *Client) connection(ctx context.Context, u *url.URL, fresh bool, avoid string) (*conn, error) {
	to := destination{u.Scheme, u.Host}
	if !fresh {
		if c := cl.pool.take(to); c != nil {
			c.reused = true
			return c, nil
		}
	}
	return cl.dial(ctx, to, u, avoid)
}

// CloseIdleConnections closes the idle connections, and those in use when their calls end. The next
// call makes a new connection, and from then on connections are kept again.
func (cl *Client) CloseIdleConnections() { cl.pool.empty() }
