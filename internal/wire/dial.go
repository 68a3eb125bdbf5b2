package wire

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/proxy"
)

// setUpTimeout is how long a new connection may take, with a proxy's tunnel and TLS.
const setUpTimeout = 10 * time.Second

// DialError says that no connection could be made. Nothing of the call has left.
type DialError struct{ Err error }

func (e *DialError) Error() string { return e.Err.Error() }
func (e *DialError) Unwrap() error { return e.Err }

// dial makes a connection to u's host. avoid is the address of a connection that has just broken, or
// empty: if the host has another address, dial takes that one. If avoid is empty and the new
// connection breaks during TLS or a proxy's tunnel, dial tries once more.
func (cl *Client) dial(ctx context.Context, to destination, u *url.URL, avoid string) (*conn, error) {
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, &DialError{fmt.Errorf("%q is neither http nor https", u.Scheme)}
	}
	c := &conn{client: cl, to: to}
	limited, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	if err := c.setUp(context.WithValue(limited, avoided{}, avoid), u); err != nil {
		if c.socket != nil {
			c.abandon()
		}
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case c.socket != nil && c.socket.broken.Load() && avoid == "" && limited.Err() == nil:
			return cl.dial(ctx, to, u, c.socket.RemoteAddr().String())
		}
		return nil, &DialError{err}
	}
	c.idleSince, c.maxIdle = time.Now(), cl.cfg.IdleTimeout
	return c, nil
}

// avoided is the key of the address to avoid, in the context of a dial.
type avoided struct{}

// checkAvoided refuses the address to avoid. The net.Dialer then takes the next address of the name.
func checkAvoided(ctx context.Context, _, address string, _ syscall.RawConn) error {
	if address == ctx.Value(avoided{}) {
		return errors.New("the last connection to this address broke")
	}
	return nil
}

// setUp makes the layers of a connection: TCP, a tunnel if there is a proxy, TLS.
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
	if err != nil && ctx.Value(avoided{}) != "" { // there is no other address
		tcp, err = c.client.cfg.Dial(context.WithValue(ctx, avoided{}, ""), "tcp", addr)
	}
	if err != nil {
		return err
	}
	c.socket = &socket{Conn: tcp, raw: descriptor(tcp)}
	c.Conn = c.socket
	return nil
}

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

func (c *conn) askHTTP(user *url.Userinfo, addr string) error {
	ask := "CONNECT " + addr + " HTTP/1.1\r\nHost: " + addr + "\r\n"
	if user != nil {
		password, _ := user.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		ask += "Proxy-Authorization: Basic " + credentials + "\r\n"
	}
	if _, err := io.WriteString(c.Conn, ask+"\r\n"); err != nil {
		return err
	}
	from := bufio.NewReader(io.LimitReader(c.Conn, c.client.cfg.MaxHead))
	for {
		resp, err := http.ReadResponse(from, &http.Request{Method: http.MethodConnect})
		switch {
		case err != nil:
			return errors.New("the proxy's answer cannot be read")
		case resp.StatusCode/100 == 1 && resp.StatusCode != http.StatusSwitchingProtocols:
			continue
		case resp.StatusCode/100 != 2:
			return fmt.Errorf("the proxy answered %d", resp.StatusCode)
		case from.Buffered() > 0:
			return errors.New("the proxy sent more than an answer")
		}
		return nil
	}
}

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

var defaultPorts = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}

func address(u *url.URL) (string, error) {
	port := cmp.Or(u.Port(), defaultPorts[u.Scheme])
	host, err := httpguts.PunycodeHostPort(u.Hostname())
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("%s has no host and port to connect to", u.Redacted())
	}
	return net.JoinHostPort(host, port), nil
}
