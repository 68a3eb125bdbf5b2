package guard

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What net/http answers by itself has the port's shape; what handlers answer is theirs,
// whatever it looks like.
func TestRefusals(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 4 << 10, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, "400 Bad Request")
	})}
	refuse := func(w http.ResponseWriter, status int, why string) {
		w.Header().Set("X-Shape", "ours")
		w.WriteHeader(status)
		fmt.Fprint(w, why)
	}
	go srv.Serve(Listener(l, nil, refuse, slog.New(slog.DiscardHandler)))
	defer srv.Close()
	for _, tc := range []struct {
		name, raw string
		status    int
		ours      bool
		body      string
	}{
		{"a handler's", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, false, "400 Bad Request"},
		{"malformed", "GET / HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n", 400, true, "it is not well-formed HTTP"},
		{"no host", "GET / HTTP/1.1\r\n\r\n", 400, true, "missing required Host header"},
		{"another version", "GET / HTTP/3.0\r\nHost: a\r\n\r\n", 400, true, "HTTP/1.1 or HTTP/1.0"},
		{"too large", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 10<<10) + "\r\n\r\n", 431, true, "request header fields too large"},
		{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, true, "Content-Length"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := dial(t, l.Addr().String(), nil)
			io.WriteString(conn, tc.raw)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.status || (resp.Header.Get("X-Shape") == "ours") != tc.ours || !strings.Contains(string(body), tc.body) || err != nil || !resp.Close {
				t.Errorf("%d %v %q, %v", resp.StatusCode, resp.Header, body, err)
			}
		})
	}
}
