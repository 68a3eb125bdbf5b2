package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/proxy"
)

// setUpTimeout is for a TCP connection, and again for the layers above it.
const setUpTimeout = 10 * time.Second

// DialError says that no connection could be made: nothing of the call has left.
type DialError struct{ Err error }

func (e *DialError) Error() string { return e.Err.Error() }
func (e *DialError) Unwrap() error { return e.Err }

// dial makes a connection to u's host.
func (cl *Client) dial(ctx context.Context, where place, u *url.URL) (*conn, error) {
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, &DialError{fmt.Errorf("%q is neither http nor https", u.Scheme)}
	}
	c := &conn{client: cl, where: where}
	if err := c.setUp(ctx, u); err != nil {
		if c.socket != nil {
			c.abandon()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &DialError{err}
	}
	c.from = bufio.NewReaderSize(c, readSize)
	return c, nil
}

// setUp makes the layers: TCP, a proxy's tunnel if there is a proxy, TLS.
func (c *conn) setUp(ctx context.Context, u *url.URL) error {
	var via *url.URL
	if c.client.cfg.Proxy != nil {
		var err error
		if via, err = c.client.cfg.Proxy(u); err != nil {
			return err
		}
	}
	addr, err := address(u)
	if err != nil {
		return err
	}
	if via == nil {
		err = c.connect(ctx, addr)
	} else if err = c.tunnel(ctx, via, addr); err != nil {
		err = &net.OpError{Op: "proxyconnect", Net: "tcp", Err: err}
	}
	if err != nil || u.Scheme == "http" {
		return err
	}
	return c.addTLS(ctx, addr)
}

func (c *conn) connect(ctx context.Context, addr string) error {
	tcp, err := c.client.cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	c.socket = newSocket(tcp)
	c.Conn = c.socket
	return nil
}

// tunnel connects to addr through a proxy.
func (c *conn) tunnel(ctx context.Context, via *url.URL, addr string) error {
	proxyAddr, err := address(via)
	if err != nil {
		return err
	}
	if via.Scheme == "socks5" || via.Scheme == "socks5h" {
		return c.socks(ctx, via, proxyAddr, addr)
	}
	if err := c.connect(ctx, proxyAddr); err != nil {
		return err
	}
	if via.Scheme == "https" {
		if err := c.addTLS(ctx, proxyAddr); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, c.abandon)
	if err := c.askForTunnel(addr, via.User); err != nil {
		return err
	}
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

func (c *conn) askForTunnel(addr string, user *url.Userinfo) error {
	ask := "CONNECT " + addr + " HTTP/1.1\r\nHost: " + addr + "\r\n"
	if user != nil {
		password, _ := user.Password()
		ask += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c.Conn, ask+"\r\n"); err != nil {
		return err
	}
	from := bufio.NewReader(io.LimitReader(c.Conn, c.client.cfg.MaxHead))
	resp, err := http.ReadResponse(from, &http.Request{Method: http.MethodConnect})
	switch {
	case err != nil:
		return errors.New("the proxy's answer cannot be read")
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the proxy answered %d", resp.StatusCode)
	case from.Buffered() > 0:
		return errors.New("the proxy sent more than an answer")
	}
	return nil
}

func (c *conn) socks(ctx context.Context, via *url.URL, proxyAddr, addr string) error {
	var auth *proxy.Auth
	if via.User != nil {
		password, _ := via.User.Password()
		auth = &proxy.Auth{User: via.User.Username(), Password: password}
	}
	dialer, err := proxy.SOCKS5("tcp", proxyAddr, auth, below{c})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	_, err = dialer.(proxy.ContextDialer).DialContext(ctx, "tcp", addr)
	return err
}

// below lets the SOCKS library use a connection that exists already.
type below struct{ c *conn }

func (b below) Dial(network, addr string) (net.Conn, error) {
	return b.DialContext(context.Background(), network, addr)
}

func (b below) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	if err := b.c.connect(ctx, addr); err != nil {
		return nil, err
	}
	return b.c.Conn, nil
}

// addTLS adds a TLS layer, with the server at addr.
func (c *conn) addTLS(ctx context.Context, addr string) (err error) {
	cfg := c.client.cfg.TLS.Clone()
	if cfg == nil {
		cfg = new(tls.Config)
	}
	if cfg.ServerName, _, err = net.SplitHostPort(addr); err != nil {
		return err
	}
	cfg.NextProtos = []string{"http/1.1"}
	cfg.DynamicRecordSizingDisabled = true // each write is one record and one system call
	from := &records{Conn: c.Conn}
	c.tls = append(c.tls, from)
	above := tls.Client(from, cfg)
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	if err := above.HandshakeContext(ctx); err != nil {
		return err
	}
	c.Conn = above
	return nil
}

// address returns the host and port of a URL.
func address(u *url.URL) (string, error) {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	host, err := httpguts.PunycodeHostPort(u.Hostname())
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("%s has no host and port to connect to", u.Redacted())
	}
	return net.JoinHostPort(host, port), nil
}
