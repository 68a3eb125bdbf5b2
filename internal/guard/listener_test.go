package guard

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/testkit/pipes"
)

const answerLength = 8 << 20

// answers serves an answer of answerLength in one write, and tells how that ended, and when.
func answers(t *testing.T) (reader net.Conn, srv *Server, wrote <-chan error) {
	ended := make(chan error, 1)
	srv = NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(answerLength))
		_, err := w.Write(bytes.Repeat([]byte("x"), answerLength))
		ended <- err
	}), nil, slog.New(slog.DiscardHandler))
	way := make(pipes.Listener)
	go srv.Serve(way)
	t.Cleanup(func() { srv.Close() })
	reader = way.Dial(t)
	io.WriteString(reader, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	return reader, srv, ended
}

// An answer has all the time in the world, as long as its reader takes some of it now and then.
func TestReaders(t *testing.T) {
	for _, tc := range []struct {
		name  string
		reads int // that are slow
		each  int
		pause time.Duration
		whole bool
	}{
		{"quick", 0, 0, 0, true},
		{"a byte each minute", 500, 1, time.Minute, true},
		{"in steps", 5, 190_000, patience - time.Second, true},
		{"takes nothing", 1, 1, patience + time.Second, false},
		{"a pause in the middle", 1, 500_000, patience + time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reader, _, wrote := answers(t)
				for range tc.reads {
					time.Sleep(tc.pause)
					_, _ = io.CopyN(io.Discard, reader, int64(tc.each)) // where it fails all fails below
				}
				n, err := io.Copy(io.Discard, io.LimitReader(reader, answerLength)) // a bit less than all: the head came before
				if whole := n+int64(tc.reads*tc.each) >= answerLength; err != nil || whole != tc.whole {
					t.Errorf("%d bytes, %v", n, err)
				}
				if tc.whole {
					_, _ = reader.Read(make([]byte, 4096)) // what the head has left
				}
				if err := <-wrote; (err == nil) != tc.whole {
					t.Errorf("the write: %v", err)
				}
			})
		})
	}
}

// An answer that nobody takes ends in time, and does not use up the grace of a shutdown, unlike one whose reader
// takes some of it.
func TestUnread(t *testing.T) {
	for name, tc := range map[string]struct {
		shutdown, reads, stops, want time.Duration
	}{
		"while usher runs":                     {0, 0, 0, patience},
		"when usher ends":                      {time.Minute, 0, 0, time.Minute + lastPatience},
		"when usher ends, a slow reader":       {time.Minute, 4 * time.Second, time.Hour, time.Hour},
		"when usher ends, one that then stops": {time.Minute, 4 * time.Second, 2 * time.Minute, 2*time.Minute + lastPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				reader, srv, wrote := answers(t)
				if tc.shutdown > 0 {
					time.AfterFunc(tc.shutdown, func() { go srv.Shutdown(t.Context()) })
				}
				go func() {
					for time.Since(began) < tc.stops {
						time.Sleep(tc.reads)
						_, _ = reader.Read(make([]byte, 8<<10))
					}
				}()
				if err := <-wrote; err == nil || time.Since(began) < tc.want || time.Since(began) > tc.want+10*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// Whoever comes is answered, however many connections others hold open: those that are quiet longest are closed, and
// never one whose request is being answered. A head that does not arrive has ten seconds.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		srv := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/slow" {
				<-release
			}
		}), nil, slog.New(slog.DiscardHandler))
		way := make(pipes.Listener)
		l := newListener(way, 5, srv.log)
		go srv.Server.Serve(l)
		t.Cleanup(func() { srv.Close() })
		// ask sends a request, or the beginning of one, and returns what reads its answer.
		ask := func(request string) (answer func() error) {
			conn := way.Dial(t)
			_, _ = io.WriteString(conn, request)
			synctest.Wait()
			return func() error {
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err == nil && resp.StatusCode != 200 {
					err = errors.New(resp.Status)
				}
				return err
			}
		}
		const head = " HTTP/1.1\r\nHost: a\r\n"
		slow := ask("GET /slow" + head + "\r\n")
		for i := range 20 {
			ask([]string{"", "G", "GET /" + head + "X: ", "GET /" + head, "POST /" + head + "Content-Length: 9\r\n\r\nx"}[i%5]) // each takes the place of another one
			if err := ask("GET /" + head + "\r\n")(); err != nil {
				t.Errorf("beside %d others: %v", i, err)
			}
		}
		if n := len(l.conns); n != 5 {
			t.Errorf("%d connections", n)
		}
		close(release)
		if err := slow(); err != nil {
			t.Errorf("the one that is being answered: %v", err)
		}
		for began, request := time.Now(), ""; request != head; request = head {
			conn := way.Dial(t)
			_, _ = io.WriteString(conn, request)
			if n, err := conn.Read(make([]byte, 1)); n > 0 || time.Since(began) > 11*time.Second {
				t.Errorf("%q: %d bytes, %v after %v", request, n, err, time.Since(began))
			}
		}
		time.Sleep(5 * time.Minute) // an idle connection is closed after two
		if synctest.Wait(); len(l.conns)+l.quiet.Len() != 0 {
			t.Errorf("%d connections are left, %d quiet", len(l.conns), l.quiet.Len())
		}
	})
}

// Who says Drain has every answer close its connection.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
		way := make(pipes.Listener)
		go srv.Serve(way)
		t.Cleanup(func() { srv.Close() })
		conn := way.Dial(t)
		for _, last := range []bool{false, true} {
			if last {
				srv.Drain()
			}
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.Close != last {
				t.Errorf("%v, %v", resp, err)
			}
		}
	})
}
