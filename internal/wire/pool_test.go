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
	"testing/synctest"
	"time"
)

// The connection that was used last is used next, those that are not used go after their
// time, and what is too many is not kept.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, made := 0, 0
		gate := make(chan struct{})
		cl := newClient(t, func(c *Config) {
			c.MaxIdle = 3
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				mu.Lock()
				open, made = open+1, made+1
				mu.Unlock()
				go func() {
					for from := bufio.NewReader(far); ; {
						if _, _, err := readCall(from); err != nil {
							break
						}
						gate <- struct{}{}
						io.WriteString(far, okAnswer)
					}
					far.Close()
					mu.Lock()
					open--
					mu.Unlock()
				}()
				return near, nil
			}
		})
		calls := func(n int) {
			var running sync.WaitGroup
			for range n {
				running.Go(func() {
					if _, _, err := call(cl, request(t, t.Context(), "GET", "http://service", nil)); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			for range n {
				time.Sleep(500 * time.Millisecond)
				<-gate
			}
			running.Wait()
			synctest.Wait()
		}
		expect := func(when string, wantOpen, wantMade int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if open != wantOpen || made != wantMade {
				t.Errorf("%s: %d of %d are open, want %d of %d", when, open, made, wantOpen, wantMade)
			}
		}
		calls(5)
		expect("five at once", 3, 5)
		for range 7 { // a minute, in which one of them is used
			time.Sleep(9 * time.Second)
			calls(1)
		}
		expect("after a minute", 1, 5)
		time.Sleep(59 * time.Second)
		calls(1)
		expect("shortly before its time", 1, 5)
		time.Sleep(67 * time.Second) // it is looked at every six
		synctest.Wait()
		expect("after its time", 0, 5)
		calls(2)
		cl.CloseIdleConnections()
		synctest.Wait()
		expect("closed", 0, 7)
		calls(1)
		expect("and used again", 1, 8)
		cl.CloseIdleConnections()
	})
}

// A connection is not used past what the other side has announced, less a second, counted from
// the head of the answer: the other side may have sent the rest long before it was read.
func TestKeepAlive(t *testing.T) {
	for _, tc := range []struct {
		header string
		slow   time.Duration // of the answer's body
		lasts  time.Duration
	}{
		{"Keep-Alive: timeout=5\r\n", 0, 4 * time.Second},
		{"Keep-Alive: timeout=5, max=100\r\n", 0, 4 * time.Second},
		{"keep-alive: max=100 , Timeout = 5\r\n", 0, 4 * time.Second},
		{"Keep-Alive: max=100\r\nKeep-Alive: timeout=\"5\"\r\n", 0, 4 * time.Second},
		{"Keep-Alive: timeout=5\r\n", 3 * time.Second, time.Second},
		{"Keep-Alive: timeout=5\r\n", 4 * time.Second, 0},
		{"Keep-Alive: timeout=5\r\n", time.Hour, 0},
		{"Keep-Alive: timeout=1\r\n", 0, 0},
		{"Keep-Alive: timeout=0\r\n", 0, 0},
		{"Keep-Alive: timeout=600\r\n", 0, time.Minute},
		{"Keep-Alive: timeout=-5\r\n", 0, time.Minute},
		{"Keep-Alive: timeout=99999999999999999999\r\n", 0, time.Minute},
		{"Keep-Alive: timeout\r\n", 0, time.Minute},
		{"", time.Hour, time.Minute},
	} {
		for _, past := range []bool{false, true} {
			wait, want := tc.lasts, 2
			if !past {
				if wait, want = wait-1, 1; wait < 0 {
					continue
				}
			}
			synctest.Test(t, func(t *testing.T) {
				made := 0
				cl := newClient(t, func(c *Config) {
					c.Dial = func(context.Context, string, string) (net.Conn, error) {
						made++
						near, far := net.Pipe()
						go func() {
							for from := bufio.NewReader(far); ; {
								if _, _, err := readCall(from); err != nil {
									return
								}
								io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"+tc.header+"\r\n")
								time.Sleep(tc.slow)
								io.WriteString(far, "ok")
							}
						}()
						return near, nil
					}
				})
				for range 2 {
					if _, body, err := call(cl, request(t, t.Context(), "GET", "http://service", nil)); body != "ok" || err != nil {
						t.Error(body, err)
					}
					time.Sleep(wait)
				}
				if made != want {
					t.Errorf("%q, %v between two calls: %d connections, want %d", tc.header, wait, made, want)
				}
				cl.CloseIdleConnections()
			})
		}
	}
}

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
