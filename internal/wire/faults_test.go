package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// plainAndTLS runs a test twice.
func plainAndTLS(t *testing.T, test func(t *testing.T, start func(script) (url string, count func() int), cl *Client)) {
	server, client := certificates(t)
	t.Run("plain", func(t *testing.T) {
		test(t, func(do script) (string, func() int) {
			addr, count := serve(t, do)
			return "http://" + addr, count
		}, newClient(t))
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			server := server.Clone()
			server.MaxVersion = version
			test(t, func(do script) (string, func() int) {
				l, err := tls.Listen("tcp", "127.0.0.1:0", server)
				if err != nil {
					t.Fatal(err)
				}
				return "https://" + l.Addr().String(), serveOn(t, l, do)
			}, newClient(t, func(c *Config) { c.TLS = client }))
		})
	}
}

// A connection that ended, or was spoken on, while it was idle costs nobody a call, and
// none is sent twice.
func TestIdleConnectionsThatDied(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"close":          func(c net.Conn) { c.Close() },
		"reset":          reset,
		"half close":     func(c net.Conn) { c.(interface{ CloseWrite() error }).CloseWrite() },
		"a whole answer": func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil") },
		"408": func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
			c.Close()
		},
		"one byte": func(c net.Conn) { io.WriteString(c, "\n") },
	} {
		t.Run(name, func(t *testing.T) {
			plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
				// as many as there are calls: where one is used again, the test must not hang
				ended := make(chan struct{}, 3)
				var calls atomic.Int32
				url, count := start(func(conn net.Conn, from *bufio.Reader, nth int) {
					for {
						if _, _, err := readCall(from); err != nil {
							return
						}
						calls.Add(1)
						io.WriteString(conn, okAnswer)
						if nth == 0 {
							end(conn)
							ended <- struct{}{}
						}
					}
				})
				post := func() {
					t.Helper()
					if status, body, err := call(cl, request(t, t.Context(), "POST", url, strings.NewReader("x"))); status != 200 || body != "ok" || err != nil {
						t.Errorf("%d %q %v", status, body, err)
					}
				}
				post()
				<-ended
				time.Sleep(5 * time.Millisecond) // loopback is fast, but not instant
				post()
				post()
				if count() != 2 || calls.Load() != 3 {
					t.Errorf("%d calls over %d connections, want 3 over 2", calls.Load(), count())
				}
			})
		})
	}
}

// brittle fails writes that begin after it is told to, with nothing written: a connection
// that dies between the look at it and the write.
type brittle struct {
	net.Conn
	broken *atomic.Bool
	old    bool
}

func (b *brittle) Write(p []byte) (int, error) {
	if b.old && b.broken.Load() {
		return 0, errors.New("broken pipe")
	}
	n, err := b.Conn.Write(p)
	return n, err
}

// Where the write itself finds out, and not one byte has left, the call takes the next
// connection: whatever its method, and with a body that streams, too.
func TestNothingSentIsSentAgain(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
		var calls atomic.Int32
		url, _ := start(func(conn net.Conn, from *bufio.Reader, _ int) {
			for {
				_, body, err := readCall(from)
				if err != nil {
					return
				}
				calls.Add(1)
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		})
		var broken, refused atomic.Bool
		var mu sync.Mutex
		var made []*brittle
		dial := cl.cfg.Dial
		cl.cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if refused.Load() {
				return nil, errors.New("connection refused")
			}
			conn, err := dial(ctx, network, addr)
			b := &brittle{Conn: conn, broken: &broken}
			mu.Lock()
			made = append(made, b)
			mu.Unlock()
			return b, err
		}
		breakAll := func() {
			mu.Lock()
			defer mu.Unlock()
			for _, b := range made {
				b.old = true
			}
			broken.Store(true)
		}
		big := strings.Repeat("x", 5*pieceSize)
		for i, body := range []string{"", "small", big} {
			for _, chunked := range []bool{false, true} {
				broken.Store(false)
				if status, _, err := call(cl, request(t, t.Context(), "GET", url, nil)); status != 200 || err != nil {
					t.Fatal(status, err)
				}
				breakAll()
				before := calls.Load()
				req := request(t, t.Context(), "POST", url, strings.NewReader(body))
				if chunked {
					req.ContentLength = -1
				}
				if status, got, err := call(cl, req); status != 200 || got != body || err != nil || calls.Load() != before+1 {
					t.Errorf("%d, chunked %v: %d, %d bytes, %v after %d calls", i, chunked, status, len(got), err, calls.Load()-before)
				}
			}
		}
		breakAll()
		refused.Store(true)
		before := calls.Load()
		_, _, err := call(cl, request(t, t.Context(), "POST", url, strings.NewReader("x")))
		if dialErr := new(DialError); !errors.As(err, &dialErr) || calls.Load() != before {
			t.Errorf("with no other connection to be had: %v, %d calls", err, calls.Load()-before)
		}
	})
}

// half writes half of what it is given, once it is told to, and fails.
type half struct {
	net.Conn
	broken *atomic.Bool
}

func (h half) Write(p []byte) (int, error) {
	if !h.broken.CompareAndSwap(true, false) {
		return h.Conn.Write(p)
	}
	n, _ := h.Conn.Write(p[:len(p)/2])
	return n, errors.New("broken pipe")
}

// A write that breaks off: without TLS the other side may have read half of the call. Half
// of a record it can't read, so over TLS nothing has left, and the call is sent again.
func TestHalfWritten(t *testing.T) {
	t.Parallel() // it waits
	plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
		var calls atomic.Int32
		url, count := start(func(conn net.Conn, from *bufio.Reader, _ int) {
			for {
				if _, err := http.ReadRequest(from); err != nil {
					return
				}
				calls.Add(1)
				io.WriteString(conn, okAnswer)
			}
		})
		var broken atomic.Bool
		dial := cl.cfg.Dial
		cl.cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return half{conn, &broken}, err
		}
		for i, secure := 0, strings.HasPrefix(url, "https"); i < 2; i++ {
			_, _, err := call(cl, request(t, t.Context(), "GET", url, nil))
			if again := err == nil; again != (i == 0 || secure) {
				t.Errorf("call %d: %v", i, err)
			}
			broken.Store(true)
		}
		if secure := strings.HasPrefix(url, "https"); secure && (calls.Load() != 2 || count() != 2) || !secure && calls.Load() != 1 {
			t.Errorf("%d calls over %d connections", calls.Load(), count())
		}
	})
}

// Where a byte has left it is not sent again. The error says if that was on a connection from the pool:
// who may ask twice can do so on a new one.
func TestSentOnce(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
		for _, end := range []func(net.Conn){reset, func(c net.Conn) { c.Close() }} {
			var calls atomic.Int32
			url, count := start(func(conn net.Conn, from *bufio.Reader, nth int) {
				for i := 0; ; i++ {
					if _, _, err := readCall(from); err != nil {
						return
					}
					calls.Add(1)
					if nth < 2 && i == 1 {
						end(conn)
						return
					}
					io.WriteString(conn, okAnswer)
				}
			})
			for i, tc := range []struct {
				call  Call
				works bool
				calls int32
				conns int
			}{{Call{}, true, 1, 1}, {Call{}, false, 2, 1}, {Call{}, true, 3, 2}, {Call{New: true}, true, 4, 3}} {
				req := request(t, With(t.Context(), tc.call), "GET", url, nil)
				req.Header.Set("Idempotency-Key", "1")
				_, _, err := call(cl, req)
				if stale := new(StaleError); errors.As(err, &stale) == tc.works || calls.Load() != tc.calls || count() != tc.conns {
					t.Errorf("call %d: %v, %d calls over %d connections", i, err, calls.Load(), count())
				}
			}
		}
	})
}

// A new connection that breaks before a byte of the call has left costs nobody anything: there is one
// more try, and not a third.
func TestNewConnectionThatBreaks(t *testing.T) {
	server, client := certificates(t)
	proxied := func(c *Config, addr string) {
		c.Proxy = func(*url.URL) (*url.URL, error) { return &url.URL{Scheme: "http", Host: addr}, nil }
	}
	for name, tc := range map[string]struct {
		scheme string
		end    func(net.Conn, *bufio.Reader)
		change func(*Config, string)
		tries  int
	}{
		"reset in the handshake":  {"https", func(c net.Conn, from *bufio.Reader) { from.ReadByte(); reset(c) }, nil, 2},
		"closed in the handshake": {"https", func(net.Conn, *bufio.Reader) {}, nil, 2},
		"refused in it": {"https", func(c net.Conn, _ *bufio.Reader) {
			tls.Server(c, &tls.Config{Certificates: server.Certificates, CipherSuites: []uint16{}, MaxVersion: tls.VersionTLS11}).Handshake()
			io.Copy(io.Discard, c)
		}, nil, 1},
		"closed by a proxy":  {"https", func(_ net.Conn, from *bufio.Reader) { readCall(from) }, proxied, 2},
		"refused by a proxy": {"https", func(c net.Conn, from *bufio.Reader) { readCall(from); io.WriteString(c, "HTTP/1.1 407 No\r\n\r\n") }, proxied, 1},
		"answers nothing":    {"http", func(_ net.Conn, from *bufio.Reader) { readCall(from) }, nil, 1},
	} {
		for broken := 1; broken <= 2; broken++ {
			t.Run(fmt.Sprint(name, broken), func(t *testing.T) {
				if tc.change != nil && broken == 1 && tc.tries == 2 {
					t.Skip("the test has no proxy that works: TestTunnels has")
				}
				addr, count := serve(t, func(conn net.Conn, from *bufio.Reader, nth int) {
					if nth < broken {
						tc.end(conn, from)
						return
					}
					if tc.scheme == "https" {
						conn = tls.Server(conn, server)
					}
					readCall(bufio.NewReader(conn))
					io.WriteString(conn, okAnswer)
				})
				cl := newClient(t, func(c *Config) {
					c.TLS = client
					if tc.change != nil {
						tc.change(c, addr)
					}
				})
				_, _, err := call(cl, request(t, t.Context(), "POST", tc.scheme+"://"+addr, strings.NewReader("x")))
				if works := err == nil; works != (tc.tries > broken) || count() != min(tc.tries, broken+1) {
					t.Errorf("%v after %d connections", err, count())
				}
			})
		}
	}
}

// The same where the first write finds out. What has left in part is not sent again.
func TestFirstWriteFails(t *testing.T) {
	t.Parallel() // it waits
	for _, tc := range []struct {
		broken, half int32 // connections whose first write fails: with nothing, or a half of it, written
		works        bool
		made, calls  int32
	}{{1, 0, true, 2, 1}, {2, 0, false, 2, 0}, {0, 1, false, 1, 0}, {1, 1, false, 2, 0}} {
		var made, calls atomic.Int32
		addr, _ := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
			if _, _, err := readCall(from); err == nil {
				calls.Add(1)
				io.WriteString(conn, okAnswer)
			}
		})
		cl := newClient(t)
		dial := cl.cfg.Dial
		cl.cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil { // it avoids the address at first
				return nil, err
			}
			nth, broken := made.Add(1), new(atomic.Bool)
			broken.Store(nth <= tc.broken+tc.half)
			if nth <= tc.broken {
				return &brittle{conn, broken, true}, nil
			}
			return half{conn, broken}, nil
		}
		_, _, err := call(cl, request(t, t.Context(), "POST", "http://"+addr, strings.NewReader("x")))
		if (err == nil) != tc.works || made.Load() != tc.made || calls.Load() != tc.calls {
			t.Errorf("%+v: %v, %d calls over %d connections", tc, err, calls.Load(), made.Load())
		}
	}
}

// One of the addresses of a name is dead, though it takes connections: the second try goes to another.
func TestDeadAddress(t *testing.T) {
	server, client := certificates(t)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(dead.Addr().String())
	live, err := tls.Listen("tcp", "127.0.0.2:"+port, server)
	if err != nil {
		t.Skip("there is only one loopback address here: ", err)
	}
	deaths := serveOn(t, dead, func(conn net.Conn, from *bufio.Reader, _ int) { from.ReadByte(); reset(conn) })
	var gone atomic.Bool
	serveOn(t, live, func(conn net.Conn, from *bufio.Reader, _ int) {
		if !gone.Load() {
			readCall(from)
			io.WriteString(conn, okAnswer)
		}
	})
	client = client.Clone()
	client.InsecureSkipVerify = true // the certificate has not this name
	for _, tc := range []struct {
		addresses []string
		deaths    int
		works     bool
	}{
		{[]string{"127.0.0.1", "127.0.0.2"}, 1, true},
		{[]string{"127.0.0.2", "127.0.0.1"}, 0, true},
		{[]string{"127.0.0.1"}, 2, false},
		{[]string{"127.0.0.1", "127.0.0.3"}, 2, false}, // nobody listens there
	} {
		before := deaths()
		cl := newClient(t, func(c *Config) {
			c.TLS = client
			c.Dial = (&net.Dialer{Resolver: resolver(t, tc.addresses), ControlContext: checkAvoided}).DialContext
		})
		_, _, err := call(cl, request(t, t.Context(), "POST", "https://service.test:"+port, strings.NewReader("x")))
		if (err == nil) != tc.works || deaths()-before != tc.deaths {
			t.Errorf("%v: %v after %d resets", tc.addresses, err, deaths()-before)
		}
	}
}

// An answer that comes before all of the body was sent is passed on, and the rest of the
// body is not sent.
func TestEarlyAnswer(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
		for name, end := range map[string]func(net.Conn, *bufio.Reader){
			"and it reads no more": func(_ net.Conn, from *bufio.Reader) { <-t.Context().Done() },
			"and it closes":        func(c net.Conn, _ *bufio.Reader) { c.Close() },
			"and it resets":        func(c net.Conn, _ *bufio.Reader) { reset(c) },
		} {
			t.Run(name, func(t *testing.T) {
				over := make(chan struct{})
				url, _ := start(func(conn net.Conn, from *bufio.Reader, _ int) {
					http.ReadRequest(from)
					io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntoo much")
					if name == "and it reads no more" {
						<-over
						return
					}
					end(conn, from)
				})
				body, writer := io.Pipe()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for {
						if _, err := writer.Write(make([]byte, 1<<20)); err != nil {
							return
						}
					}
				}()
				req := request(t, t.Context(), "POST", url, body)
				if status, answer, err := call(cl, req); status != 413 || answer != "too much" || err != nil {
					t.Errorf("%d %q %v", status, answer, err)
				}
				<-ended // the body was closed
				close(over)
			})
		}
	})
}

// failing is a body that ends with an error after n bytes.
type failing struct {
	n      int
	err    error
	closed atomic.Bool
}

func (f *failing) Read(p []byte) (int, error) {
	if f.n == 0 {
		return 0, f.err
	}
	n := min(len(p), f.n)
	f.n -= n
	return n, nil
}
func (f *failing) Close() error { f.closed.Store(true); return nil }

// A body that is not what it says does not arrive, and its own error comes back.
func TestWrongBodies(t *testing.T) {
	var whole sync.Map // by name
	addr, _ := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
		if req, _, err := readCall(from); err == nil {
			whole.Store(req.Header.Get("X-Name"), true)
			io.WriteString(conn, okAnswer)
		}
	})
	for _, tc := range []struct {
		name         string
		have, length int
		err          error
		arrives      bool // what is too long looks whole to the server
	}{
		{"short", 5, 10, io.EOF, false},
		{"short, large", 5 * pieceSize, 6 * pieceSize, io.EOF, false},
		{"long", 10, 5, io.EOF, false},
		{"long, large", 6 * pieceSize, 5 * pieceSize, io.EOF, true},
		{"broken", 5, 10, errBroken, false},
		{"broken, large", 5 * pieceSize, 6 * pieceSize, errBroken, false},
		{"broken chunks", 5, -1, errBroken, false},
		{"broken chunks, large", 5 * pieceSize, -1, errBroken, false},
		{"broken after its end", 10, 10, errBroken, false},
	} {
		body := &failing{n: tc.have, err: tc.err}
		req := request(t, t.Context(), "POST", "http://"+addr, body)
		req.ContentLength = int64(tc.length)
		req.Header.Set("X-Name", tc.name)
		_, _, err := call(newClient(t), req)
		if tc.arrives {
			continue // the answer, or the error: whichever comes first
		}
		if _, arrived := whole.Load(tc.name); err == nil || tc.err == errBroken && !errors.Is(err, errBroken) || arrived {
			t.Errorf("%s: %v, arrived %v", tc.name, err, arrived)
		}
		for !body.closed.Load() {
			time.Sleep(time.Millisecond)
		}
	}
}

// A call can be cancelled at each step, at once, with its own reason; and nothing is left
// of it: the bubble does not end while a goroutine is there.
func TestCancelled(t *testing.T) {
	reason := errors.New("the caller went away")
	head := func(from *bufio.Reader) { http.ReadRequest(from) }
	for name, tc := range map[string]struct {
		do   script
		dial bool // that is where it hangs
		body bool // that never ends
	}{
		"dialling":       {nil, true, false},
		"writing":        {func(net.Conn, *bufio.Reader, int) {}, false, false},
		"writing a body": {func(_ net.Conn, from *bufio.Reader, _ int) { head(from) }, false, true},
		"waiting":        {func(_ net.Conn, from *bufio.Reader, _ int) { head(from) }, false, false},
		"after 1xx":      {func(c net.Conn, from *bufio.Reader, _ int) { head(from); io.WriteString(c, "HTTP/1.1 103 E\r\n\r\n") }, false, false},
		"in the head":    {func(c net.Conn, from *bufio.Reader, _ int) { head(from); io.WriteString(c, "HTTP/1.1 200 OK\r\nX") }, false, false},
		"before the body": {func(c net.Conn, from *bufio.Reader, _ int) {
			head(from)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
		}, false, false},
		"in the body": {func(c net.Conn, from *bufio.Reader, _ int) {
			head(from)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
		}, false, false},
		"in a chunk": {func(c net.Conn, from *bufio.Reader, _ int) {
			head(from)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe")
		}, false, false},
		"in the trailers": {func(c net.Conn, from *bufio.Reader, _ int) {
			head(from)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-")
		}, false, false},
		"in an early answer": {func(c net.Conn, from *bufio.Reader, _ int) {
			head(from)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				cl := newClient(t, func(c *Config) {
					c.Dial = func(dialling context.Context, _, _ string) (net.Conn, error) {
						if tc.dial {
							<-dialling.Done()
							return nil, dialling.Err()
						}
						near, far := net.Pipe()
						go func() {
							tc.do(far, bufio.NewReader(far), 0)
							<-ctx.Done()
							far.Close()
						}()
						return near, nil
					}
				})
				var body io.Reader
				if tc.body {
					pipe, writer := io.Pipe()
					body = pipe
					go func() {
						for {
							if _, err := writer.Write(make([]byte, 1000)); err != nil {
								return
							}
						}
					}()
				}
				began := time.Now()
				time.AfterFunc(time.Second, func() { cancel(reason) })
				_, _, err := call(cl, request(t, ctx, "POST", "http://service", body))
				if !errors.Is(err, reason) || time.Since(began) != time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// The answer's head has its time from the request's last byte on; a write has the same.
// The answer's body has all the time in the world.
func TestTimeouts(t *testing.T) {
	run := func(name string, body io.Reader, do script, want time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var server sync.WaitGroup
				defer server.Wait()
				cl := newClient(t, func(c *Config) {
					c.Dial = func(context.Context, string, string) (net.Conn, error) {
						near, far := net.Pipe()
						server.Go(func() {
							do(far, bufio.NewReader(far), 0)
							far.Close()
						})
						return near, nil
					}
				})
				began := time.Now()
				status, answer, err := call(cl, request(t, t.Context(), "POST", "http://service", body))
				took := time.Since(began)
				var timeout net.Error
				switch {
				case want > 0 && (!errors.As(err, &timeout) || !timeout.Timeout() || took != want):
					t.Errorf("%v after %v, want a timeout after %v", err, took, want)
				case want == 0 && (status != 200 || answer != "ok" || err != nil):
					t.Errorf("%d %q %v", status, answer, err)
				}
			})
		})
	}
	const limit = 5 * time.Second // of newClient
	slow := func() io.Reader { return &slowBody{pieces: 10, pause: time.Second} }
	silent := func(_ net.Conn, from *bufio.Reader, _ int) { readCall(from); io.Copy(io.Discard, from) }
	run("no answer", nil, silent, limit)
	run("no answer to a body", slow(), silent, 10*time.Second+limit)
	run("half a head", nil, func(c net.Conn, from *bufio.Reader, _ int) {
		readCall(from)
		io.WriteString(c, "HTTP/1.1 200 O")
		io.Copy(io.Discard, from)
	}, limit)
	run("1xx for ever", nil, func(c net.Conn, from *bufio.Reader, _ int) {
		for readCall(from); ; time.Sleep(time.Second) {
			if _, err := io.WriteString(c, "HTTP/1.1 103 E\r\n\r\n"); err != nil {
				return
			}
		}
	}, limit)
	run("nobody reads", nil, func(net.Conn, *bufio.Reader, int) { time.Sleep(time.Minute) }, limit)
	run("a slow answer", slow(), func(c net.Conn, from *bufio.Reader, _ int) {
		readCall(from)
		time.Sleep(limit - 1)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
		time.Sleep(time.Hour)
		io.WriteString(c, "ok")
	}, 0)
	run("an early answer, then the body goes on", slow(), func(c net.Conn, from *bufio.Reader, _ int) {
		http.ReadRequest(from)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
		go io.Copy(io.Discard, from)
		time.Sleep(time.Hour)
		io.WriteString(c, "ok")
	}, 0)
}

type slowBody struct {
	pieces int
	pause  time.Duration
}

func (s *slowBody) Read(p []byte) (int, error) {
	if s.pieces == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	s.pieces--
	return copy(p, "piece"), nil
}

// Close may come from another goroutine while Read waits, and both end.
func TestCloseWhileReading(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
		url, count := start(func(conn net.Conn, from *bufio.Reader, nth int) {
			readCall(from)
			if nth > 0 {
				io.WriteString(conn, okAnswer)
				return
			}
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
			io.Copy(io.Discard, from)
		})
		resp, err := cl.RoundTrip(request(t, t.Context(), "GET", url, nil))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(10*time.Millisecond, func() { resp.Body.Close() })
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("the answer looks whole")
		}
		if _, body, err := call(cl, request(t, t.Context(), "GET", url, nil)); body != "ok" || err != nil || count() != 2 {
			t.Errorf("%q %v over %d connections", body, err, count())
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
			t.Error("read after the end")
		}
	})
}

// What is not allowed any more does not leave, however far it has got; and what was not
// sent at all for that reason does not go through all the connections that there are.
func TestFence(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
		var arrived atomic.Int32
		url, count := start(func(conn net.Conn, from *bufio.Reader, _ int) {
			for {
				if _, _, err := readCall(from); err != nil {
					return
				}
				arrived.Add(1)
				io.WriteString(conn, okAnswer)
			}
		})
		for n, step := range []struct {
			size, looks int // how often it may
			arrives     bool
			conns       int // that have been made by then
		}{
			{2, 0, false, 1},
			{2, 1, true, 2},
			{2, 1, true, 2}, // on the connection that is there
			{2, 0, false, 2},
			{1 << 20, 1, false, 3},
			{1 << 20, 5, false, 4},
			{1 << 20, 1000, true, 5},
			{2, 1, true, 5},
		} {
			arrived.Store(0)
			looks := 0
			ctx := With(t.Context(), Call{Fence: func() error {
				if looks++; looks > step.looks {
					return errBroken
				}
				return nil
			}})
			_, _, err := call(cl, request(t, ctx, "POST", url, strings.NewReader(strings.Repeat("x", step.size))))
			for range 1000 {
				if count() >= step.conns {
					break
				}
				time.Sleep(time.Millisecond) // a connection is made before it is accepted
			}
			if got := arrived.Load() == 1; got != step.arrives || (err == nil) != step.arrives || err != nil && !errors.Is(err, errBroken) || count() != step.conns {
				t.Errorf("step %d: arrived %v, %v, %d connections", n, got, err, count())
			}
		}
	})
}
