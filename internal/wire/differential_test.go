package wire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// both makes the same call through http.Transport and through a Client, to servers that do
// the same, over connections where each write of the server's is a read of its own.
func both(t *testing.T, method string, do script) (theirs, ours string) {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			do(far, bufio.NewReader(far), 0)
		}()
		return near, nil
	}
	req := request(t, t.Context(), method, "http://service/graphql", nil)
	tr := newTransport(t)
	tr.DialContext = dial
	cl := newClient(t, func(c *Config) { c.Dial = dial })
	return outcome(tr, req), outcome(cl, req)
}

var wholeAnswers = map[string]string{
	"length":  "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 11\r\n\r\nhello world",
	"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Sum: 42\r\n\r\n",
	"close":   "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello world",
	"1xx":     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
}

// An answer that ends at each byte, and one that comes in two pieces.
func TestAnswerCutAtEachByte(t *testing.T) {
	for name, whole := range wholeAnswers {
		for at := range len(whole) + 1 {
			for _, cut := range []bool{true, false} {
				theirs, ours := both(t, "GET", func(conn net.Conn, from *bufio.Reader, _ int) {
					readCall(from)
					io.WriteString(conn, whole[:at])
					if !cut {
						io.WriteString(conn, whole[at:])
					}
				})
				if ours != theirs {
					t.Errorf("%s, cut %v at %d: %s\nhttp.Transport: %s", name, cut, at, ours, theirs)
				}
			}
		}
	}
}

// oddAnswers are what services have sent, and what they might: FuzzAnswer begins with them.
var oddAnswers = []string{
	"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",                                                                       // bare LF
	"HTTP/1.1 200 OK\r\nX-Long: a\r\n b\r\nContent-Length: 2\r\n\r\nok",                                              // folded
	"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",                                                                // space before colon
	"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",                                                                            // no colon
	"HTTP/1.1 200 OK\r\n X: y\r\nContent-Length: 2\r\n\r\nok",                                                        // first line folded
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",                                            // length twice, the same
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",                                            // length twice, two
	"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",                                                              // length list
	"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",                                                                // length negative
	"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",                                                                // length with a plus
	"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nok",                                                                  // length empty
	"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nok",                                              // length huge
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",                 // length and chunked
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",                                           // gzip, chunked
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",                   // chunked twice
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",                                  // identity
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",                                     // bad chunk size
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",                                    // chunk too long
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nok\r\n",                               // chunk size overflows
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Late: 1\r\n\r\n",                         // trailer that nobody named
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Late: 1\r\n",                             // trailers without an end
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\nContent-Length: 3\r\n\r\n", // trailer that frames
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nnonsense\r\n\r\n",                          // trailer that is none
	"HTTP/1.0 200 OK\r\n\r\nok",                                                                                      // HTTP/1.0
	"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nokay",                                                               // HTTP/1.0, length
	"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",                                       // HTTP/1.0, keep-alive
	"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",                                      // HTTP/1.0, chunked
	"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",                                                                 // HTTP/2.0
	"SSH-2.0-OpenSSH_9.2p1\r\n",                                                                                      // no HTTP at all
	"http/1.1 200 OK\r\n\r\n",                                                                                        // lower case
	"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",                                                                    // status of two digits
	"HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n",                                                                   // status of letters
	"HTTP/1.1 -20 OK\r\nContent-Length: 0\r\n\r\n",                                                                   // negative status
	"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",                                                                      // status without words
	"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",                                                                  // status 999
	"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",                                                                  // status 099
	"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",                                  // 101
	strings.Repeat("HTTP/1.1 103 E\r\nLink: </a>\r\n\r\n", 50) + okAnswer,                                            // 1xx many times
	"HTTP/1.1 103 E\r\nContent-Length: 5\r\n\r\n" + okAnswer,                                                         // 1xx with a length
	"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",                                                           // 204 with a length
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",                                                         // 304 with a length
	"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",                                                  // 204 with chunks
	"\r\n" + okAnswer, // blank line first
	"HTTP/1.1 200 OK\r\nX-Odd: a\x00b\r\nContent-Length: 2\r\n\r\nok", // NUL in a value
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokay then",           // more than the length
	okAnswer + okAnswer, // a second answer
	"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nmore", // what follows 101
}

// A head is bounded, and many heads of one answer are bounded as one.
func TestBoundedHeads(t *testing.T) {
	long := strings.Repeat("x", 17<<10)
	for name, tc := range map[string]struct{ answer, want string }{
		"over the bound":          {"HTTP/1.1 200 OK\r\nX-Long: " + long + "\r\nContent-Length: 0\r\n\r\n", "failed"},
		"its first line":          {"HTTP/1.1 200 " + long + "\r\nContent-Length: 0\r\n\r\n", "failed"},
		"one below the bound":     {"HTTP/1.1 200 OK\r\nX-Long: " + long[:15<<10] + "\r\nContent-Length: 2\r\n\r\nok", "200, "},
		"many 1xx":                {strings.Repeat("HTTP/1.1 103 E\r\nX-Long: "+long[:1000]+"\r\n\r\n", 20) + okAnswer, "103"},
		"trailers over the bound": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Long: " + strings.Repeat(long, 2) + "\r\n\r\n", "200, "},
	} {
		_, ours := both(t, "GET", func(conn net.Conn, from *bufio.Reader, _ int) {
			readCall(from)
			io.WriteString(conn, tc.answer)
		})
		broken := strings.HasSuffix(ours, "failed") || strings.HasSuffix(ours, "broke off")
		if !strings.HasPrefix(ours, tc.want) || broken == strings.HasPrefix(name, "one below") {
			t.Errorf("%s: %.300s", name, ours)
		}
	}
}

// What was left over never becomes part of another call's answer: the next call gets a
// connection of its own, and its own answer.
func TestLeftOver(t *testing.T) {
	for name, answer := range map[string]string{
		"more than the length":  "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
		"after the chunks":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
		"a body that none has":  "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil",
		"says that it closes":   "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.0":              "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"a line feed too much":  okAnswer + "\r\n",
		"to the close, and 1.1": "HTTP/1.1 200 OK\r\n\r\nok",
	} {
		t.Run(name, func(t *testing.T) {
			addr, count := serve(t, func(conn net.Conn, from *bufio.Reader, nth int) {
				readCall(from)
				if nth > 0 {
					io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")
					return
				}
				io.WriteString(conn, answer)
				if strings.HasPrefix(name, "to the close") {
					return
				}
				readCall(from)
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
			})
			cl := newClient(t)
			if _, _, err := call(cl, request(t, t.Context(), "GET", "http://"+addr, nil)); err != nil {
				t.Fatal(err)
			}
			if _, body, err := call(cl, request(t, t.Context(), "POST", "http://"+addr, strings.NewReader("x"))); body != "right" || err != nil || count() != 2 {
				t.Errorf("%q %v over %d connections", body, err, count())
			}
		})
	}
}

// What a request looks like on the wire.
func TestRequests(t *testing.T) {
	reader := func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) } // hides its length
	for name, tc := range map[string]struct {
		method, target string
		body           io.Reader
		length         int64
		change         func(*http.Request)
		want           string
	}{
		"GET":             {"GET", "/graphql?a=%zz;b&c=d+e", nil, 0, nil, "GET /graphql?a=%zz;b&c=d+e HTTP/1.1\r\nHost: HOST\r\n\r\n"},
		"no path":         {"GET", "", nil, 0, nil, "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n"},
		"POST":            {"POST", "/g", reader("hello"), 5, nil, "POST /g HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhello"},
		"POST, empty":     {"POST", "/g", nil, 0, func(r *http.Request) { r.Header.Set("Content-Length", "7") }, "POST /g HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n"},
		"POST, no length": {"POST", "/g", nil, 0, nil, "POST /g HTTP/1.1\r\nHost: HOST\r\n\r\n"},
		"chunked":         {"POST", "/g", reader("hello"), -1, nil, "POST /g HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
		"chunked, empty":  {"POST", "/g", reader(""), -1, nil, "POST /g HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		"framing is ours": {"POST", "/g", reader("hi"), 2, func(r *http.Request) {
			r.Header = http.Header{"User-Agent": {""}, "Transfer-Encoding": {"chunked"}, "Content-Length": {"9"}, "content-length": {"8"}, "Trailer": {"X"}, "Connection": {"x"}, "Host": {"evil"}}
		}, "POST /g HTTP/1.1\r\nHost: HOST\r\nContent-Length: 2\r\n\r\nhi"},
		"headers":           {"GET", "/g", nil, 0, func(r *http.Request) { r.Header = http.Header{"A": nil, "B": {"2", " 3 "}, "User-Agent": nil} }, "GET /g HTTP/1.1\r\nHost: HOST\r\nB: 2\r\nB: 3\r\n\r\n"},
		"a name":            {"GET", "/g", nil, 0, func(r *http.Request) { r.Header = http.Header{"User-Agent": {"test"}} }, "GET /g HTTP/1.1\r\nHost: HOST\r\nUser-Agent: test\r\n\r\n"},
		"a host of its own": {"GET", "/g", nil, 0, func(r *http.Request) { r.Host = "büro.example" }, "GET /g HTTP/1.1\r\nHost: xn--bro-hoa.example\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			addr, _ := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
				p := make([]byte, len(strings.ReplaceAll(tc.want, "HOST", conn.LocalAddr().String())))
				io.ReadFull(from, p)
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				rest, _ := io.ReadAll(from)
				got <- string(p) + string(rest)
			})
			req := request(t, t.Context(), tc.method, "http://"+addr+tc.target, tc.body)
			req.Header = http.Header{}
			req.ContentLength = tc.length
			if tc.change != nil {
				tc.change(req)
			}
			if _, _, err := call(newClient(t), req); err != nil {
				t.Fatal(err)
			}
			if got, want := <-got, strings.ReplaceAll(tc.want, "HOST", addr); got != want {
				t.Errorf("%q, want\n%q", got, want)
			}
		})
	}
}

// What could be read as more than one request, or as another, is refused before anything
// is sent, and the secret in it is not shown.
func TestRefusedRequests(t *testing.T) {
	addr, _ := serve(t, func(_ net.Conn, from *bufio.Reader, _ int) {
		if sent, _ := io.ReadAll(from); len(sent) > 0 {
			t.Errorf("sent: %q", sent)
		}
	})
	for name, change := range map[string]func(*http.Request){
		"value":   func(r *http.Request) { r.Header["Authorization"] = []string{"Bearer t0psecret\r\nX: y"} },
		"CR":      func(r *http.Request) { r.Header["Authorization"] = []string{"Bearer t0psecret\rX: y"} },
		"LF":      func(r *http.Request) { r.Header["Authorization"] = []string{"Bearer t0psecret\nX: y"} },
		"NUL":     func(r *http.Request) { r.Header["Authorization"] = []string{"Bearer t0psecret\x00"} },
		"name":    func(r *http.Request) { r.Header["X y"] = []string{"z"} },
		"method":  func(r *http.Request) { r.Method = "GET /x HTTP/1.1\r\n" },
		"query":   func(r *http.Request) { r.URL.RawQuery = "a b" },
		"host":    func(r *http.Request) { r.Host = "a\r\nb" },
		"scheme":  func(r *http.Request) { r.URL.Scheme = "ftp" },
		"no host": func(r *http.Request) { r.URL.Host = "" },
	} {
		req := request(t, t.Context(), "GET", "http://"+addr, nil)
		change(req)
		cl := newClient(t)
		if _, _, err := call(cl, req); err == nil || strings.Contains(err.Error(), "t0psecret") {
			t.Errorf("%s: %v", name, err)
		}
		cl.CloseIdleConnections()
	}
}

// Many pieces, and both ways to say how long a body is.
func TestLargeBodies(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	addr, count := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
		for {
			req, body, err := readCall(from)
			if err != nil {
				return
			}
			if body != big[:len(body)] {
				t.Errorf("a body of %d bytes was changed", len(body))
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Length: %d\r\n\r\n%s", len(body), req.ContentLength, body)
		}
	})
	cl := newClient(t)
	for _, size := range []int{0, 1, pieceSize - 200, pieceSize - 100, pieceSize, pieceSize + 1, 3 * pieceSize, len(big)} {
		for _, chunked := range []bool{false, true} {
			req := request(t, t.Context(), "POST", "http://"+addr, io.MultiReader(strings.NewReader(big[:size])))
			req.ContentLength = int64(size)
			if chunked {
				req.ContentLength = -1
			}
			if status, body, err := call(cl, req); status != 200 || body != big[:size] || err != nil {
				t.Errorf("%d bytes, chunked %v: %d, %d bytes, %v", size, chunked, status, len(body), err)
			}
		}
	}
	// Where the answer comes before the sending goroutine has noted its end, a new
	// connection is made: rarely, as that goroutine has nothing else to do.
	if count() > 8 {
		t.Errorf("%d connections for 16 calls one after the other", count())
	}
}
