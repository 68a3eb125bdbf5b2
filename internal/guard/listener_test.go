package guard

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// serve runs a server behind a Listener until the test ends. It answers with the body
// that came, and whether it came over TLS.
func serve(t *testing.T, config *tls.Config, log io.Writer) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s tls=%t", body, r.TLS != nil)
	})}
	go srv.Serve(Listener(l, config, Patience, slog.New(slog.NewTextHandler(log, nil))))
	t.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

func dial(t *testing.T, addr string, config *tls.Config) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if config == nil {
		return conn
	}
	return tls.Client(conn, config)
}

// A request that is objected to is refused after the answers to those before it, on a
// plain connection and over TLS, however its bytes are cut.
func TestListener(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	const (
		good = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
		both = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
	)
	for _, config := range []*tls.Config{nil, {Certificates: certified.TLS.Certificates}} {
		var log bytes.Buffer
		addr := serve(t, config, &log)
		clientConfig := config
		if config != nil {
			clientConfig = &tls.Config{InsecureSkipVerify: true}
		}
		for _, step := range []int{1, 3, 1000} {
			conn := dial(t, addr, clientConfig)
			for raw := good + both; raw != ""; {
				n := min(step, len(raw))
				if _, err := io.WriteString(conn, raw[:n]); err != nil {
					break // refused before all of it was sent
				}
				raw = raw[n:]
			}
			answers, _ := io.ReadAll(conn)
			first, second, _ := strings.Cut(string(answers), fmt.Sprintf("hello tls=%t", config != nil))
			if !strings.HasPrefix(first, "HTTP/1.1 200 ") || !strings.HasPrefix(second, "HTTP/1.1 400 ") {
				t.Errorf("tls %t, %d bytes at a time: %q", config != nil, step, answers)
			}
		}
	}
}

func TestPlainRequestToTLS(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	var log bytes.Buffer
	conn := dial(t, serve(t, &tls.Config{Certificates: certified.TLS.Certificates}, &log), nil)
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.0 400 ") || !strings.Contains(string(answer), "HTTPS") {
		t.Errorf("%q", answer)
	}
}

// A body that is badly framed is an error for whoever reads it.
func TestBadlyFramedBody(t *testing.T) {
	var log bytes.Buffer
	conn := dial(t, serve(t, nil, &log), nil)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\nworld\r\n0\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "badly framed") {
		t.Errorf("%q", answer)
	}
}

// Who is done with its answer can say so, and still read what comes.
func TestHalfClose(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	for _, config := range []*tls.Config{nil, {Certificates: certified.TLS.Certificates}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l = Listener(l, config, Patience, slog.New(slog.DiscardHandler))
		defer l.Close()
		var far *tls.Config
		if config != nil {
			far = &tls.Config{InsecureSkipVerify: true}
		}
		client := dial(t, l.Addr().String(), far)
		go io.WriteString(client, "GET")
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		head := make([]byte, 3)
		if _, err := io.ReadFull(server, head); err != nil {
			t.Fatal(err)
		}
		if err := server.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		if n, err := client.Read(head); n != 0 || err != io.EOF {
			t.Errorf("TLS %v: the client reads %d bytes, %v", config != nil, n, err)
		}
		go io.WriteString(client, " / ")
		if _, err := io.ReadFull(server, head); err != nil || string(head) != " / " {
			t.Errorf("TLS %v: the server reads %q, %v", config != nil, head, err)
		}
	}
}

// What net/http refuses by itself gets its own plain answer; what handlers answer is
// theirs, whatever it looks like, in each of its pieces.
func TestRefusals(t *testing.T) {
	const alike = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 4 << 10, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Handler", "yes")
		w.Header().Set("Content-Length", strconv.Itoa(2*len(alike)))
		w.Header().Set("Connection", "close")
		for range 2 { // each piece is a write of its own
			io.WriteString(w, alike)
			_ = http.NewResponseController(w).Flush()
		}
	})}
	go srv.Serve(Listener(l, nil, Patience, slog.New(slog.DiscardHandler)))
	defer srv.Close()
	for _, tc := range []struct {
		name, raw string
		status    int
		handlers  bool
		body      string
	}{
		{"a handler's", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200, true, alike + alike},
		{"malformed", "GET / HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n", 400, false, "400 Bad Request"},
		{"no host", "GET / HTTP/1.1\r\n\r\n", 400, false, "400 Bad Request: missing required Host header"},
		{"another version", "GET / HTTP/3.0\r\nHost: a\r\n\r\n", 400, false, "400 Bad Request"},
		{"too large", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 10<<10) + "\r\n\r\n", 431, false, "431 Request Header Fields Too Large"},
		{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, false, "400 Bad Request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := dial(t, l.Addr().String(), nil)
			io.WriteString(conn, tc.raw)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.status || (resp.Header.Get("X-Handler") != "") != tc.handlers || string(body) != tc.body || err != nil || !resp.Close {
				t.Errorf("%d %v %q, %v", resp.StatusCode, resp.Header, body, err)
			}
		})
	}
}
