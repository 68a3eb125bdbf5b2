package wire

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Whom nobody vouches for gets nothing.
func TestStrangersCertificate(t *testing.T) {
	server, _ := certificates(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, func(_ net.Conn, from *bufio.Reader, _ int) {
		if _, _, err := readCall(from); err == nil {
			t.Error("a stranger got the call")
		}
	})
	if _, _, err := call(newClient(t), request(t, t.Context(), "GET", "https://"+l.Addr().String(), nil)); err == nil {
		t.Error("a stranger was trusted")
	}
}

// gate is a server's connection below TLS that lets its bytes out only up to a point.
type gate struct {
	net.Conn
	mu   sync.Mutex
	held *bytes.Buffer // nil: all may pass
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held != nil {
		return g.held.Write(p)
	}
	return g.Conn.Write(p)
}

// What comes on an idle connection is found at each byte of its record: whether it is
// whole, so that TLS can read it, or has come in part, so that only its beginning is there.
func TestUnaskedRecord(t *testing.T) {
	server, client := certificates(t)
	const evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	for _, part := range []int{1, 4, 5, 6, 30, len(evil) + 5, 1000} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		spoken := make(chan struct{})
		count := serveOn(t, l, func(raw net.Conn, _ *bufio.Reader, nth int) {
			below := &gate{Conn: raw}
			conn := tls.Server(below, server)
			from := bufio.NewReader(conn)
			for readCall(from); ; readCall(from) {
				if _, err := io.WriteString(conn, okAnswer); err != nil {
					return
				}
				if nth > 0 {
					continue
				}
				below.held = new(bytes.Buffer)
				io.WriteString(conn, evil)
				record := below.held.Bytes()
				raw.Write(record[:min(part, len(record))])
				close(spoken)
				nth = 1 // from here on it would go on as if nothing had been
				below.held = nil
				if _, err := from.Peek(1); err != nil {
					return
				}
				raw.Write(record[min(part, len(record)):])
			}
		})
		cl := newClient(t, func(c *Config) { c.TLS = client })
		get := func() (string, error) {
			_, body, err := call(cl, request(t, t.Context(), "GET", "https://"+l.Addr().String(), nil))
			return body, err
		}
		if body, err := get(); body != "ok" || err != nil {
			t.Fatal(body, err)
		}
		<-spoken
		time.Sleep(5 * time.Millisecond) // loopback is fast, but not instant
		if body, err := get(); body != "ok" || err != nil || count() != 2 {
			t.Errorf("%d bytes of a record: %q %v over %d connections", part, body, err, count())
		}
	}
}

// An answer that ends with the connection is complete only if the server has said goodbye
// (RFC 9112, section 9.8): anybody on the way can cut a connection. A length, or a last chunk, says
// by itself that the answer is complete.
func TestCutWithoutAFarewell(t *testing.T) {
	server, client := certificates(t)
	for name, tc := range map[string]struct {
		answer   string
		farewell bool
		whole    bool
	}{
		"to the close":           {wholeAnswers["close"], true, true},
		"to the close, cut":      {wholeAnswers["close"], false, false},
		"by length, cut after":   {wholeAnswers["length"], false, true},
		"chunked, cut after":     {wholeAnswers["chunked"], false, true},
		"by length, cut in it":   {wholeAnswers["length"][:70], false, false},
		"by length, ended in it": {wholeAnswers["length"][:70], true, false},
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", server)
		if err != nil {
			t.Fatal(err)
		}
		serveOn(t, l, func(conn net.Conn, from *bufio.Reader, _ int) {
			readCall(from)
			io.WriteString(conn, tc.answer)
			if !tc.farewell {
				conn.(*tls.Conn).NetConn().Close()
			}
		})
		cl := newClient(t, func(c *Config) { c.TLS = client })
		got := outcome(cl, request(t, t.Context(), "GET", "https://"+l.Addr().String(), nil))
		if whole := !strings.HasSuffix(got, "broke off"); whole != tc.whole || !strings.HasPrefix(got, "200") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

var _ http.RoundTripper = (*Client)(nil)

// The server's farewell arrives together with the answer, whole or in part. (TLS 1.2 then returns
// both from one read: data, and an end or a wait.)
func TestFarewellWithTheAnswer(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server, client := certificates(t)
		server.MaxVersion = version
		farewell := 0 // bytes
		for held := 0; held == 0 || held < farewell; held++ {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			count := serveOn(t, l, func(raw net.Conn, _ *bufio.Reader, _ int) {
				below := &gate{Conn: raw}
				conn := tls.Server(below, server)
				readCall(bufio.NewReader(conn))
				below.held = new(bytes.Buffer)
				io.WriteString(conn, okAnswer)
				answer := below.held.Len()
				conn.CloseWrite()
				raw.SetWriteDeadline(time.Time{}) // CloseWrite has set one
				farewell = below.held.Len() - answer
				all := below.held.Bytes()
				raw.Write(all[:len(all)-held])
				if held%2 == 1 {
					raw.(*net.TCPConn).CloseWrite() // cut off in the middle of it
				}
				<-done
			})
			cl := newClient(t, func(c *Config) { c.TLS = client })
			for range 3 {
				if status, body, err := call(cl, request(t, t.Context(), "GET", "https://"+l.Addr().String(), nil)); status != 200 || body != "ok" || err != nil {
					t.Errorf("%s, %d bytes of the farewell held back: %d %q %v", tls.VersionName(version), held, status, body, err)
				}
			}
			if count() != 3 {
				t.Errorf("%d connections", count())
			}
			close(done)
		}
	}
}
