package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"usher/internal/socket"
)

// UpstreamConfig is what the connections to the billing service need to know.
type UpstreamConfig struct {
	// Timeout from a request's last byte to the header of its answer, and for each
	// write to make progress. Required.
	Timeout time.Duration
	// TLS holds the roots to trust; nil: the system's.
	TLS *tls.Config
	// Proxy returns the proxy for a request, if any; nil: none is used.
	Proxy func(*http.Request) (*url.URL, error)
}

// NewUpstream returns the connections to the billing service, one pool for all
// local ports.
func NewUpstream(cfg UpstreamConfig) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy: cfg.Proxy,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: socket.Direct(conn), patience: cfg.Timeout}, nil
		},
		TLSClientConfig:     cfg.TLS,
		TLSHandshakeTimeout: 10 * time.Second,
		// All calls go to one host, and net/http's default of 2 idle connections would
		// have a busy port dial for almost every call. There are never more than there
		// were calls at once.
		MaxIdleConnsPerHost: 4096,
		// Below the minute after which common load balancers drop a connection.
		IdleConnTimeout:       50 * time.Second,
		ResponseHeaderTimeout: cfg.Timeout,
		// The caller's Accept-Encoding passes, and so does the compressed answer.
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
		// One HTTP/2 connection carries everything: notice when it is dead.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// countedConn knows how many bytes were written to it, so that a call that never
// left can be told from one that may have arrived.
type countedConn struct {
	net.Conn
	patience time.Duration
	written  atomic.Int64
}

func (c *countedConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// counted finds the countedConn below TLS.
func counted(conn net.Conn) *countedConn {
	for {
		switch c := conn.(type) {
		case *countedConn:
			return c
		case *tls.Conn:
			conn = c.NetConn()
		default:
			return nil
		}
	}
}
