package webhookgate

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestOverTheWire is about what only a real connection shows.
func TestOverTheWire(t *testing.T) {
	release := make(chan struct{})
	begun, delivered := make(chan struct{}, 10), make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		begun <- struct{}{}
		<-release
		delivered <- string(body)
	}))
	defer receiver.Close()
	g := newGate(t, func(c *setup) {
		c.URL, _ = url.Parse(receiver.URL)
		c.Transport = nil
		c.Tokens = tokens("good")
	})
	requests, answered := make(chan context.Context, 10), make(chan struct{}, 10)
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Context()
		g.ServeHTTP(w, r)
		answered <- struct{}{}
	}))
	defer gate.Close()

	t.Run("a sender that hangs up does not stop a delivery", func(t *testing.T) {
		conn := dial(t, gate)
		fmt.Fprintf(conn, "POST /webhooks/good HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n%s", len(documented), documented)
		sender := <-requests
		<-begun // a sender who has gone before that is not taken in
		conn.Close()
		<-sender.Done()
		close(release)
		if got := <-delivered; got != documented {
			t.Errorf("delivered %q", got)
		}
		if <-answered; g.lanes.memory.Len() != 1 {
			t.Error("not remembered")
		}
	})
	t.Run("an invalid webhook does not wait for the body, and the connection lives on", func(t *testing.T) {
		conn := dial(t, gate)
		answers := bufio.NewReader(conn)
		for _, path := range []string{"/webhooks/wrong", "/webhooks/good"} {
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n%s", path, len(documented), documented)
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			if want := map[bool]int{true: 200, false: 401}[path == "/webhooks/good"]; resp.StatusCode != want {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	})
	for path, want := range map[string]string{"/webhooks/wrong": " 401 ", "/webhooks/good": " 413 "} {
		t.Run("who sends all before looking for an answer finds it:"+want, func(t *testing.T) {
			const size = 20 << 20 // more than the kernel takes in for somebody who does not read
			conn := dial(t, gate)
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n", path, size)
			if _, err := io.CopyN(conn, repeated(' '), size); err != nil {
				t.Error(err)
			}
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.Contains(line, want) {
				t.Errorf("%q, %v", line, err)
			}
		})
	}
}

// repeated is a reader of nothing but one byte.
type repeated byte

func (b repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func dial(t *testing.T, s *httptest.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}
