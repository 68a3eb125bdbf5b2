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

// setUpTimeout is for a connection and all its layers.
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
	limited, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	if err := c.setUp(limited, u); err != nil {
		if c.socket != nil {
			c.abandon()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &DialError{err}
	}
	c.idleSince = time.Now()
	return c, nil
}

// setUp makes the layers: TCP, a proxy's tunnel if there is a proxy, TLS.
func (c *conn) setUp(ctx context.Context, u *url.URL) error {
	addr, err := address(u)
	if err != nil {
		return err
	}
	var via *url.URL
	if c.client.cfg.Proxy != nil {
		if via, err = c.client.cfg.Proxy(u); err != nil {
			return err
		}
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
	c.socket = &socket{Conn: tcp, raw: descriptor(tcp)}
	c.Conn = c.socket
	return nil
}

// tunnel connects to addr through a proxy.
func (c *conn) tunnel(ctx context.Context, via *url.URL, addr string) error {
	proxyAddr, err := address(via)
	if err != nil {
		return err
	}
	if err := c.connect(ctx, proxyAddr); err != nil {
		return err
	}
	switch via.Scheme {
	case "socks5", "socks5h":
		return c.askSOCKS(ctx, via.User, proxyAddr, addr)
	case "https":
		if err := c.addTLS(ctx, proxyAddr); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, c.abandon)
	defer stop()
	return c.askHTTP(via.User, addr)
}

// askHTTP asks an HTTP proxy for a tunnel to addr.
func (c *conn) askHTTP(user *url.Userinfo, addr string) error {
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

// askSOCKS asks a SOCKS5 proxy for a tunnel to addr.
func (c *conn) askSOCKS(ctx context.Context, user *url.Userinfo, proxyAddr, addr string) error {
	var auth *proxy.Auth
	if user != nil {
		password, _ := user.Password()
		auth = &proxy.Auth{User: user.Username(), Password: password}
	}
	dialer, err := proxy.SOCKS5("tcp", proxyAddr, auth, nil)
	if err != nil {
		return err
	}
	_, err = dialer.(interface {
		DialWithConn(ctx context.Context, c net.Conn, network, addr string) (net.Addr, error)
	}).DialWithConn(ctx, c.Conn, "tcp", addr)
	return err
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
	c.Conn = above
	return above.HandshakeContext(ctx)
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
