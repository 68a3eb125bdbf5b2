package serve

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/settings"
)

// pipes is a listener without a network. A synctest bubble needs it: its clock stands still while a goroutine
// waits for a real socket.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (p pipes) Close() error   { close(p); return nil }

// testUsher has two local ports, a gate and an admin port.
func testUsher(t *testing.T) *Usher {
	t.Helper()
	environ := []string{
		"USHER_BASE_URL=http://127.0.0.1:1", "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret",
		"USHER_PORTS_0_LISTEN=127.0.0.1:8081", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1",
	}
	s, err := settings.Read(environ)
	if err != nil {
		t.Fatal(err)
	}
	u, err := build(s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(u.allListeners()); n != 4 {
		t.Fatalf("%d listeners: a local port, another, the gate and the admin port are four", n)
	}
	return u
}

// Every listener closes a connection that is idle after an answer, and one on which no request ever arrived.
func TestIdleConnectionsAreClosed(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, l := range testUsher(t).allListeners() {
		for _, tc := range []struct {
			name   string
			asks   bool
			within time.Duration // and not before half of it
		}{
			{"after an answer", true, 3 * time.Minute},
			{"at once", false, 15 * time.Second},
		} {
			t.Run(l.name+" "+tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					way := make(pipes)
					l.attach(way, log)
					served := make(chan error)
					go func() { served <- l.http.Serve(l.socket) }()
					conn, far := net.Pipe()
					defer conn.Close()
					way <- far
					if tc.asks {
						ask(t, conn)
					}
					idle := time.Now() // the bubble's
					if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
						t.Errorf("%d bytes, %v", n, err)
					}
					if took := time.Since(idle); took < tc.within/2 || took > tc.within {
						t.Errorf("closed after %v", took)
					}
					l.http.Close()
					<-served
				})
			})
		}
	}
}

// closing notes when a connection is closed.
type closing struct {
	net.Conn
	at chan time.Time
}

func (c closing) Close() error {
	select {
	case c.at <- time.Now():
	default:
	}
	return c.Conn.Close()
}

// Every listener closes a connection whose caller does not read its answer.
func TestUnreadAnswers(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, l := range testUsher(t).allListeners() {
		t.Run(l.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				within := 2 * time.Minute
				if l.name == "main" || l.name == "0" {
					within = 10 * time.Minute
				}
				way := make(pipes)
				l.attach(way, log)
				served := make(chan error)
				go func() { served <- l.http.Serve(l.socket) }()
				conn, far := net.Pipe()
				defer conn.Close()
				closed := closing{far, make(chan time.Time, 1)}
				way <- closed
				start := time.Now()
				_, _ = io.WriteString(conn, "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if took := (<-closed.at).Sub(start); took < within || took > within+5*time.Second {
					t.Errorf("closed after %v, want %v", took, within)
				}
				l.http.Close()
				<-served
			})
		})
	}
}

// ask sends a request that the port answers by itself, and keeps the connection.
func ask(t *testing.T, conn net.Conn) {
	t.Helper()
	go func() { _, _ = io.WriteString(conn, "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n") }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Close || resp.StatusCode != http.StatusNotFound {
		t.Fatal(resp.Status, resp.Close, err)
	}
}
