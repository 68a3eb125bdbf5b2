package guard_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// inner is a request for the path that exists, inside the body of another one, as whoever is in front of usher sees it.
const inner = "POST /graphql HTTP/1.1\r\nHost: localhost\r\nX-Inner: yes\r\nContent-Length: 2\r\n\r\n{}"

// Nobody gets a request past a proxy in front of usher: what a parser may take for the body of a request is never
// served as a second one. Each probe gets through to a server that reads lengths as some have done.
func TestSmuggling(t *testing.T) {
	const chunked, whole = "Transfer-Encoding: chunked", "Content-Length: {all}"
	const end = "0\r\n\r\n" // for those who read chunks
	probes := []struct {
		name  string
		lines []string // the first may be another request line
		body  string
	}{
		{"after a CONNECT", []string{"CONNECT localhost:443 HTTP/1.1"}, inner},
		{"a length, then chunks", []string{whole, chunked}, end + inner},
		{"chunks, then a length", []string{chunked, whole}, end + inner},
		{"a short length beside chunks", []string{"Content-Length: 4", chunked}, "61\r\n" + inner + "\r\n" + end},
		{"chunks in HTTP/1.0", []string{"POST /graphql HTTP/1.0", "Connection: keep-alive", "Content-Length: 4", chunked}, "61\r\n" + inner + "\r\n" + end},
		{"chunks in HTTP/1.0, no length", []string{"POST /graphql HTTP/1.0", "Connection: keep-alive", chunked}, end + inner},
		{"two lengths", []string{whole, "Content-Length: 0"}, inner},
		{"two lengths in one", []string{"Content-Length: 0, {all}"}, inner},
		{"a length with a sign", []string{"Content-Length: +0", whole}, inner},
		{"a negative length", []string{"Content-Length: -1"}, inner},
		{"an empty length", []string{"Content-Length:", whole}, inner},
		{"a length before a space", []string{"Content-Length : 0", whole}, inner},
		{"two codings", []string{chunked, "Transfer-Encoding: identity", whole}, end + inner},
		{"gzip and chunked", []string{"Transfer-Encoding: gzip, chunked", whole}, end + inner},
		{"chunked, not the last", []string{"Transfer-Encoding: chunked, identity", whole}, end + inner},
		{"xchunked", []string{"Transfer-Encoding: xchunked", whole}, end + inner},
		{"quoted", []string{`Transfer-Encoding: "chunked"`, whole}, end + inner},
		{"a control character", []string{"Transfer-Encoding: \x0bchunked", whole}, end + inner},
		{"a space before the colon", []string{"Transfer-Encoding : chunked", whole}, end + inner},
		{"folded", []string{"Transfer-Encoding:", " chunked", whole}, end + inner},
		{"a look-alike", []string{"Transfer_Encoding: chunked", whole}, end + inner},
		{"a chunk's size with a sign", []string{chunked}, "+0\r\n\r\n" + inner},
		{"a chunk's size that ends early", []string{chunked}, "0;\n\r\n" + inner},
		{"a bare CR after a chunk's size", []string{chunked}, "0\r\r\n\r\n" + inner},
		{"a chunk longer than its size", []string{chunked}, "1\r\n12\r\n" + end + inner},
		{"a size that overflows", []string{chunked}, "10000000000000000\r\n\r\n" + inner},
	}
	var served atomic.Int32
	usher := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/graphql" && r.Header.Get("X-Inner") != "" {
			served.Add(1)
		}
	})
	// gotThrough says whether the inner request was served.
	gotThrough := func(addr, raw string) bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, raw)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.ReadAll(conn) // until the server closes
		return served.Swap(0) > 0
	}
	var naive []string
	for _, chunks := range []bool{true, false} {
		for _, last := range []bool{true, false} {
			naive = append(naive, serveNaively(t, chunks, last, &served))
		}
	}
	for _, p := range probes {
		line := "POST /graphql HTTP/1.1"
		if strings.Contains(p.lines[0], " HTTP/1.") {
			line, p.lines = p.lines[0], p.lines[1:]
		}
		head := strings.Join(append([]string{line, "Host: localhost"}, p.lines...), "\r\n") + "\r\n\r\n"
		raw := strings.ReplaceAll(head, "{all}", strconv.Itoa(len(p.body))) + p.body
		if gotThrough(usher, raw) {
			t.Errorf("%s: smuggled", p.name)
		}
		if !slices.ContainsFunc(naive, func(addr string) bool { return gotThrough(addr, raw) }) {
			t.Errorf("%s: no server lets it through: the probe shows nothing", p.name)
		}
	}
	if !gotThrough(usher, "GET /graphql HTTP/1.1\r\nHost: localhost\r\n\r\n"+inner) {
		t.Error("a second request is not served at all: the probes show nothing")
	}
}

// serveNaively serves as no server should: it takes any number for a length, the first or the last of several, and
// anything with "chunked" in it for chunks, or nothing.
func serveNaively(t *testing.T, chunks, last bool, served *atomic.Int32) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	request := func(in *textproto.Reader) bool {
		line, err := in.ReadLine()
		if err != nil {
			return false
		}
		name, length := "", 0
		isInner, counted, chunked := false, false, false
		for header := " "; header != ""; {
			if header, err = in.ReadLine(); err != nil {
				return false
			}
			value := header
			if !strings.HasPrefix(header, " ") {
				name, value, _ = strings.Cut(header, ":")
			}
			switch strings.ToLower(strings.ReplaceAll(strings.TrimSpace(name), "_", "-")) {
			case "content-length":
				for item := range strings.SplitSeq(value, ",") {
					if n, _ := strconv.Atoi(strings.TrimSpace(item)); last || !counted {
						length, counted = max(0, n), true
					}
				}
			case "transfer-encoding":
				chunked = chunked || chunks && strings.Contains(value, "chunked")
			case "x-inner":
				isInner = strings.Contains(line, " /graphql ")
			}
		}
		if isInner {
			served.Add(1)
		}
		for size := 1; chunked && size > 0; {
			line, err := in.ReadLine()
			if err != nil {
				return false
			}
			digits, _, _ := strings.Cut(strings.Trim(line, "\r"), ";")
			n, _ := strconv.ParseUint(digits[max(0, len(digits)-16):], 16, 64) // as if what overflows was lost
			size, length = int(n), 0
			_, _ = io.CopyN(io.Discard, in.R, int64(n))
			_, _ = in.ReadLine()
		}
		_, err = io.CopyN(io.Discard, in.R, int64(length))
		return err == nil
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			for in := textproto.NewReader(bufio.NewReader(conn)); request(in); {
			}
			conn.Close()
		}
	}()
	return l.Addr().String()
}
