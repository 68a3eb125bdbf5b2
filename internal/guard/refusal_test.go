package guard

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
	go srv.Serve(Listener(l, nil, slog.New(slog.DiscardHandler)))
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
