package proxy

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// A service that refuses tokens, breaks off, says too much and hangs up, in any order, while
// many call: whoever gets an answer gets the one to its own call, and no call comes twice
// but after a 401.
func TestAnswersAreNotMixedUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	taken := make(map[string]int)   // guarded by mu
	refused := make(map[string]int) // guarded by mu
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go oddService(conn, func(id string, ok bool) {
				mu.Lock()
				defer mu.Unlock()
				if ok {
					taken[id]++
				} else {
					refused[id]++
				}
			})
		}
	}()
	r := newRig(t, nil, func(c *Config) { c.Target = &url.URL{Scheme: "http", Host: l.Addr().String(), Path: path} })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var right, failed int
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for n := range 50 {
				id := fmt.Sprintf("%d-%d", caller, n)
				body := strings.Repeat("x", []int{10, 1000, replayLimit / 2, 2 * replayLimit}[rand.IntN(4)])
				req, _ := http.NewRequest("POST", r.URL+path, strings.NewReader(body))
				req.Header.Set("X-Id", id)
				resp, err := client.Do(req)
				var answer []byte
				if err == nil {
					answer, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				mu.Lock()
				switch {
				case err != nil || resp.StatusCode >= 500:
					failed++
				case resp.StatusCode == 401 || string(answer) == id:
					right++
				default:
					t.Errorf("%s was answered %d %q", id, resp.StatusCode, answer)
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	mu.Lock()
	defer mu.Unlock()
	for id, n := range taken {
		if n > 1 || refused[id] > 2 {
			t.Errorf("%s came %d times, and was refused %d times", id, n, refused[id])
		}
	}
	if right == 0 || failed == 0 {
		t.Errorf("%d right, %d failed: nothing was tried", right, failed)
	}
}

// oddService answers each call on a connection with its id, more or less.
func oddService(conn net.Conn, note func(id string, ok bool)) {
	defer conn.Close()
	for from := bufio.NewReader(conn); ; {
		req, err := http.ReadRequest(from)
		if err != nil {
			return
		}
		id := req.Header.Get("X-Id")
		if rand.IntN(20) == 0 { // before it has read the body
			note(id, false)
			io.WriteString(conn, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		note(id, true)
		answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(id), id)
		switch rand.IntN(10) {
		case 0:
			answer += "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
		case 1:
			io.WriteString(conn, answer[:rand.IntN(len(answer))])
			return
		case 2:
			io.WriteString(conn, answer)
			return
		}
		io.WriteString(conn, answer)
	}
}
