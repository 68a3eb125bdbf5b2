package guard

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// crowd serves connections in memory that share this much memory for heads. Requests for /slow wait for
// finish.
func crowd(t *testing.T, config *tls.Config, limit int64) (dial func() net.Conn, shared *memory, srv *Server, finish func()) {
	t.Helper()
	log, finished := slog.New(slog.DiscardHandler), make(chan struct{})
	srv = NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/slow" {
			<-finished
		}
	}), log)
	way, shared := make(pipes), &memory{limit: limit}
	go srv.Serve(&listener{Listener: way, tls: config, patience: Patience, heads: shared, log: log})
	t.Cleanup(func() { srv.Close() })
	return func() net.Conn {
		here, there := net.Pipe()
		way <- there
		t.Cleanup(func() { here.Close() })
		return here
	}, shared, srv, func() { close(finished) }
}

// head is a request's head, of about this length, whole or not.
func head(path string, length int, whole bool) string {
	h := "GET " + path + " HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", length)
	if whole {
		h += "\r\n\r\n"
	}
	return h
}

// statusOf returns the status that a request gets on a connection, or 0 if that is closed without an answer.
func statusOf(c net.Conn, request string) int {
	go io.WriteString(c, request)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// The heads of all connections together have a bound. Those that are small always have room, the others as
// long as there is some, and each gives back what it took.
func TestHeadsHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, shared, _, finish := crowd(t, nil, 100<<10)
		unfinished := dial()
		io.WriteString(unfinished, head("/", 60<<10, false))
		slow, answered := dial(), make(chan int)
		go func() { answered <- statusOf(slow, head("/slow", 50<<10, true)) }()
		synctest.Wait()
		if used := shared.used.Load(); used < 90<<10 || used > 100<<10 {
			t.Errorf("%d bytes are taken", used)
		}
		if status := statusOf(dial(), head("/", 30<<10, true)); status != 0 {
			t.Errorf("a large head without room: %d", status)
		}
		many := dial()
		for range 3 {
			if status := statusOf(many, head("/", 7<<10, true)); status != 200 {
				t.Errorf("a small head: %d", status)
			}
		}
		unfinished.Close()
		synctest.Wait()
		if status := statusOf(dial(), head("/", 30<<10, true)); status != 200 {
			t.Errorf("a large head beside one that waits for its answer: %d", status)
		}
		if finish(); <-answered != 200 {
			t.Error("the one that waited is not answered")
		}
		synctest.Wait()
		if used := shared.used.Load(); used != 0 {
			t.Errorf("%d bytes are not given back", used)
		}
	})
}

// A head with many headers takes more memory than it has bytes.
func TestManyHeadersTakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, shared, _, _ := crowd(t, nil, 100<<10)
		usual, odd := dial(), dial()
		io.WriteString(usual, "GET / HTTP/1.1\r\n"+strings.Repeat("X-Header: some value\r\n", 40))
		synctest.Wait()
		if used := shared.used.Load(); used != 0 {
			t.Errorf("40 headers: %d bytes are taken", used)
		}
		io.WriteString(odd, "GET / HTTP/1.1\r\n"+strings.Repeat("a:\r\n", maxHeaders))
		synctest.Wait()
		if used := shared.used.Load(); used < 48<<10 {
			t.Errorf("%d headers: %d bytes are taken", maxHeaders, used)
		}
	})
}

// So has what strangers send instead of a handshake.
func TestHandshakesHaveABound(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	hello := "\x01\x00\xff\xf0" + strings.Repeat("x", 60<<10) // a ClientHello that is longer than what comes
	var records strings.Builder
	for len(hello) > 0 {
		n := min(len(hello), 16<<10)
		records.WriteString("\x16\x03\x01" + string(binary.BigEndian.AppendUint16(nil, uint16(n))) + hello[:n])
		hello = hello[n:]
	}
	synctest.Test(t, func(t *testing.T) {
		dial, shared, _, _ := crowd(t, &tls.Config{Certificates: certified.TLS.Certificates}, 100<<10)
		var strangers []net.Conn
		for range 10 {
			c := dial()
			strangers = append(strangers, c)
			go io.WriteString(c, records.String())
		}
		synctest.Wait()
		if used := shared.used.Load(); used < 50<<10 || used > 100<<10 {
			t.Errorf("%d bytes are taken", used)
		}
		closed := 0
		for _, c := range strangers {
			c.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := io.Copy(io.Discard, c); err == nil {
				closed++
			}
		}
		if closed < 5 || closed == len(strangers) {
			t.Errorf("%d of %d are closed", closed, len(strangers))
		}
		client := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true})
		for range 3 {
			if status := statusOf(client, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", 1<<20, strings.Repeat("x", 1<<20))); status != 200 {
				t.Errorf("a sender with a large body: %d", status)
			}
		}
		client.Close()
		for _, c := range strangers {
			c.Close()
		}
		synctest.Wait()
		if used := shared.used.Load(); used != 0 {
			t.Errorf("%d bytes are not given back", used)
		}
	})
}
