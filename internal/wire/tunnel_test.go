package wire

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// splice passes bytes on both ways until one end is through.
func splice(a net.Conn, fromA io.Reader, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, way := range []func(){func() { io.Copy(b, fromA) }, func() { io.Copy(a, b) }} {
		go func() { way(); done <- struct{}{} }()
	}
	<-done
	a.Close()
	b.Close()
	<-done
}

// Through each kind of proxy there is a tunnel, which is used for many calls, and idle
// ones are looked at through it.
func TestTunnels(t *testing.T) {
	server, client := certificates(t)
	service, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	var evil atomic.Bool
	serveOn(t, service, func(conn net.Conn, from *bufio.Reader, _ int) {
		for {
			if _, _, err := readCall(from); err != nil {
				return
			}
			answer := okAnswer
			if evil.Load() {
				answer += "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
			}
			io.WriteString(conn, answer)
		}
	})
	granted := "HTTP/1.1 200 Connection established\r\n\r\n"
	ask := func(conn net.Conn, from *bufio.Reader, _ int) {
		req, _, err := readCall(from)
		if err != nil || req.Method != "CONNECT" || req.Host != "service.invalid:443" && req.Host != service.Addr().String() {
			t.Errorf("asked for %v, %v", req, err)
			return
		}
		if want := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:pass")); req.Header.Get("Proxy-Authorization") != want {
			t.Errorf("shown %q", req.Header.Get("Proxy-Authorization"))
		}
		there, err := net.Dial("tcp", service.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, granted)
		splice(conn, from, there)
	}
	socks := func(conn net.Conn, from *bufio.Reader, _ int) {
		hello := make([]byte, 4) // version, two methods
		io.ReadFull(from, hello)
		conn.Write([]byte{5, 2})
		login := make([]byte, 1+1+2+1+4)
		io.ReadFull(from, login)
		if string(login[2:4])+":"+string(login[5:]) != "me:pass" {
			t.Errorf("shown %q", login)
		}
		conn.Write([]byte{1, 0})
		head := make([]byte, 5)
		io.ReadFull(from, head)
		rest := make([]byte, 3+2)
		if head[3] == 3 {
			rest = make([]byte, int(head[4])+2)
		}
		io.ReadFull(from, rest)
		there, err := net.Dial("tcp", service.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		conn.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		splice(conn, from, there)
	}
	for _, tc := range []struct {
		scheme, granted string
		do              script
	}{
		{"http", granted, ask},
		{"https", granted, ask},
		{"socks5", "", socks},
		{"http", "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", ask},
		{"http", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + granted, ask},
	} {
		scheme := tc.scheme
		t.Run(scheme+tc.granted, func(t *testing.T) {
			evil.Store(false)
			granted = tc.granted
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr := l.Addr().String()
			if scheme == "https" {
				l = tls.NewListener(l, server)
			}
			count := serveOn(t, l, tc.do)
			cl := newClient(t, func(c *Config) {
				c.TLS = client
				c.Proxy = func(u *url.URL) (*url.URL, error) {
					return &url.URL{Scheme: scheme, Host: addr, User: url.UserPassword("me", "pass")}, nil
				}
			})
			get := func() {
				t.Helper()
				if status, body, err := call(cl, request(t, t.Context(), "GET", "https://"+service.Addr().String()+"/graphql", nil)); status != 200 || body != "ok" || err != nil {
					t.Errorf("%d %q %v", status, body, err)
				}
			}
			get()
			get()
			if count() != 1 {
				t.Errorf("%d tunnels for two calls", count())
			}
			evil.Store(true)
			get()
			get()
			if count() != 2 {
				t.Errorf("%d tunnels, want a second after what came unasked", count())
			}
		})
	}
}

// What goes wrong at the proxy is said to have gone wrong there; its words are not
// repeated, nor is its password.
func TestTunnelRefused(t *testing.T) {
	for name, answer := range map[string]string{
		"407":         "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
		"no HTTP":     "evil",
		"nothing":     "",
		"says more":   "HTTP/1.1 200 OK\r\n\r\nevil",
		"endless":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 17<<10) + "\r\n\r\n",
		"101":         "HTTP/1.1 101 Switching Protocols\r\n\r\n",
		"only 100":    "HTTP/1.1 100 Continue\r\n\r\n",
		"other level": "HTTP/1.1 302 evil\r\nLocation: http://evil\r\n\r\n",
	} {
		addr, _ := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
			readCall(from)
			io.WriteString(conn, answer)
		})
		cl := newClient(t, func(c *Config) {
			c.Proxy = func(u *url.URL) (*url.URL, error) { return url.Parse("http://me:t0psecret@" + addr) }
		})
		_, _, err := call(cl, request(t, t.Context(), "GET", "https://service.invalid", nil))
		var op *net.OpError
		var dial *DialError
		if !errors.As(err, &op) || op.Op != "proxyconnect" || !errors.As(err, &dial) || strings.Contains(err.Error(), "t0psecret") || strings.Contains(err.Error(), "evil") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
