package wire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Many callers, and a server that does everything to its connections that one can do to
// them. Whatever happens, nobody gets the answer to somebody else's call, no call comes
// twice, and nothing is left over.
func TestStorm(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start func(script) (string, func() int), cl *Client) {
		var mu sync.Mutex
		seen := make(map[string]int)
		url, count := start(func(conn net.Conn, from *bufio.Reader, _ int) {
			for {
				req, err := http.ReadRequest(from)
				if err != nil {
					return
				}
				id := req.Header.Get("X-Id")
				mu.Lock()
				seen[id]++
				mu.Unlock()
				if rand.IntN(20) == 0 {
					fmt.Fprintf(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%s", len(id), id)
					return
				}
				if body, err := io.ReadAll(req.Body); err != nil || strings.Trim(string(body), id[:1]) != "" {
					return // it broke off
				}
				answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(id), id)
				if rand.IntN(2) == 0 {
					answer = fmt.Sprintf("HTTP/1.1 103 E\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-Sum: 1\r\n\r\n", len(id), id)
				}
				switch rand.IntN(12) {
				case 0, 1: // more than was asked for (what comes later may meet the next call: nobody can tell)
					answer += "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
				case 2: // less
					io.WriteString(conn, answer[:rand.IntN(len(answer))])
					return
				case 3:
					io.WriteString(conn, answer[:rand.IntN(len(answer))])
					reset(conn)
					return
				case 4:
					io.WriteString(conn, answer)
					return
				}
				io.WriteString(conn, answer)
			}
		})
		var right, failed, wrong atomic.Int32
		var callers sync.WaitGroup
		for caller := range 16 {
			callers.Go(func() {
				for n := range 60 {
					letter := string(rune('a' + caller))
					id := strings.Repeat(letter, 1+n%5) + fmt.Sprint("-", n)
					ctx, cancel := context.WithCancel(t.Context())
					if rand.IntN(10) == 0 {
						time.AfterFunc(time.Duration(rand.IntN(500))*time.Microsecond, cancel)
					}
					size := []int{0, 10, 100, 2 * pieceSize}[rand.IntN(4)]
					req := request(t, ctx, "POST", url, strings.NewReader(strings.Repeat(letter, size)))
					if size > 0 && rand.IntN(2) == 0 {
						req.ContentLength = -1
					}
					req.Header.Set("X-Id", id)
					switch status, body, err := call(cl, req); {
					case err != nil:
						failed.Add(1)
					case (status == 200 || status == 413) && body == id:
						right.Add(1)
					default:
						wrong.Add(1)
						t.Errorf("%s was answered %d %q", id, status, body)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		t.Logf("%d right, %d failed, over %d connections", right.Load(), failed.Load(), count())
		mu.Lock()
		defer mu.Unlock()
		for id, n := range seen {
			if n > 1 {
				t.Errorf("%s came %d times", id, n)
			}
		}
		if right.Load() < 400 {
			t.Errorf("only %d were answered", right.Load())
		}
	})
}
