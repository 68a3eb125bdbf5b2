package testkit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
)

// wired is a wire to a server that answers what it is sent, twice.
func wired(t *testing.T) *Wire {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append(body, body...))
	}))
	t.Cleanup(srv.Close)
	w, err := NewWire(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// send makes one call on a connection of its own, and returns what came back.
func (w *Wire) send(t *testing.T) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestWire(t *testing.T) {
	w := wired(t)
	var up, down int
	w.Tap = func(d Direction, p []byte) {
		if d == Up {
			up += len(p)
		} else {
			down += len(p)
		}
	}
	if body, err := w.send(t); body != "hellohello" || err != nil {
		t.Fatalf("%q %v", body, err)
	}
	if up == 0 || down == 0 || w.Dialed() != 1 {
		t.Fatalf("%d bytes up, %d down, %d connections", up, down, w.Dialed())
	}
	w.Tap = nil
	for _, tc := range []struct {
		name string
		d    Disturbance
		body string
		err  func(error) bool
	}{
		{"reset on the way up", Disturbance{Break: Reset, Direction: Up, After: up - 1}, "", isReset},
		{"reset before the first byte", Disturbance{Break: Reset, Direction: Up}, "", isReset},
		{"hang-up in the head", Disturbance{Break: HangUp, Direction: Down, After: 30}, "", isEnd},
		{"hang-up in the body", Disturbance{Break: HangUp, Direction: Down, After: down - 5}, "hello", isEnd},
		{"reset in the body", Disturbance{Break: Reset, Direction: Down, After: down - 5}, "", isReset},
		{"beyond the end", Disturbance{Break: Reset, Direction: Down, After: down}, "hellohello", nil},
		{"good again", Disturbance{}, "hellohello", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.Disturb(tc.d)
			body, err := w.send(t)
			if tc.err == nil && (err != nil || body != tc.body) || tc.err != nil && !tc.err(err) || !strings.HasPrefix("hellohello", body) {
				t.Errorf("%q %v", body, err)
			}
		})
	}
	w.Disturb(Disturbance{Break: Reset, Direction: Up, Once: true})
	if _, err := w.send(t); !isReset(err) {
		t.Errorf("%v, want a reset", err)
	}
	if body, err := w.send(t); body != "hellohello" || err != nil {
		t.Errorf("after the one that was broken: %q %v", body, err)
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
func isEnd(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) }
