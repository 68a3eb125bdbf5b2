package wire

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// HTTP/1.1 is what the two agree on, also where the server would rather have HTTP/2.
func TestALPN(t *testing.T) {
	server, client := certificates(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	agreed := make(chan string, 1)
	serveOn(t, l, func(conn net.Conn, from *bufio.Reader, _ int) {
		readCall(from)
		agreed <- conn.(*tls.Conn).ConnectionState().NegotiatedProtocol
		io.WriteString(conn, okAnswer)
	})
	cl := newClient(t, func(c *Config) { c.TLS = client })
	if status, _, err := call(cl, request(t, t.Context(), "GET", "https://"+l.Addr().String(), nil)); status != 200 || <-agreed != "http/1.1" {
		t.Error(status, err)
	}
	// Whom nobody vouches for gets nothing.
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

// What TLS has read of a record is followed, however it is cut up.
func TestRecords(t *testing.T) {
	stream := "\x17\x03\x03\x00\x03abc" + "\x16\x03\x03\x00\x00" + "\x17\x03\x03\x01\x00" + strings.Repeat("x", 256)
	ends := map[int]bool{0: true, 8: true, 13: true, len(stream): true}
	for size := 1; size <= len(stream); size++ {
		near, far := net.Pipe()
		go func() { io.WriteString(far, stream); far.Close() }()
		r := &records{Conn: near}
		for at := 0; ; {
			n, err := r.Read(make([]byte, size))
			if at += n; r.whole() != ends[at] {
				t.Fatalf("in pieces of %d, at %d: whole %v", size, at, r.whole())
			}
			if err != nil {
				break
			}
		}
	}
}

var _ http.RoundTripper = (*Client)(nil)

// TLS records that have arrived are read together: each read may become a write to somebody else.
// The end behind them is still seen.
func TestRecordsAreReadTogether(t *testing.T) {
	server, client := certificates(t)
	body := strings.Repeat("x", 48<<10) // three records
	for _, cut := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan struct{})
		serveOn(t, l, func(raw net.Conn, _ *bufio.Reader, _ int) {
			conn := tls.Server(raw, server)
			readCall(bufio.NewReader(conn))
			length := len(body)
			if cut {
				length++
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", length, body)
			raw.(*net.TCPConn).CloseWrite()
			close(sent)
			io.Copy(io.Discard, raw)
		})
		cl := newClient(t, func(c *Config) { c.TLS = client })
		resp, err := cl.RoundTrip(request(t, t.Context(), "GET", "https://"+l.Addr().String(), nil))
		if err != nil {
			t.Fatal(err)
		}
		<-sent
		buf, reads, have := make([]byte, 128<<10), 0, 0
		for err == nil {
			var n int
			n, err = resp.Body.Read(buf)
			reads, have = reads+1, have+n
		}
		if want := map[bool]error{false: io.EOF, true: io.ErrUnexpectedEOF}[cut]; have != len(body) || err != want || reads > 3 {
			t.Errorf("cut %v: %d bytes in %d reads, then %v", cut, have, reads, err)
		}
		resp.Body.Close()
	}
}

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
