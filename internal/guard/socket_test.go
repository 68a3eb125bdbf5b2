package guard

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// answerLength is that of an answer that is larger than any buffer on its way.
const answerLength = 1 << 20

// answers serves such an answer, in one write, to a caller in memory. It returns what the caller reads,
// a channel with the outcome of the write, and the server.
func answers(t *testing.T, config *tls.Config, reads func(net.Conn) net.Conn) (*bufio.Reader, <-chan error, *Server) {
	t.Helper()
	wrote, log := make(chan error, 1), slog.New(slog.DiscardHandler)
	srv := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1048576")
		_, err := w.Write(bytes.Repeat([]byte("x"), answerLength))
		wrote <- err
	}), log)
	way := make(pipes, 1)
	go srv.Serve(Listener(way, config, Patience, log))
	here, there := net.Pipe()
	way <- there
	t.Cleanup(func() { here.Close(); srv.Close() })
	caller := reads(here)
	if config != nil {
		caller = tls.Client(caller, &tls.Config{InsecureSkipVerify: true})
	}
	if _, err := io.WriteString(caller, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(caller), wrote, srv
}

// slowly reads a few bytes at a time, with pauses before the first reads.
type slowly struct {
	net.Conn
	slow  *int // how many reads are still slow
	each  int
	pause time.Duration
}

func (s slowly) Read(p []byte) (int, error) {
	if *s.slow > 0 {
		*s.slow--
		time.Sleep(s.pause)
		p = p[:min(len(p), s.each)]
	}
	return s.Conn.Read(p)
}

// An answer has all the time in the world, as long as its reader takes some of it now and then.
func TestReaders(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	for _, config := range []*tls.Config{nil, {Certificates: certified.TLS.Certificates}} {
		for _, tc := range []struct {
			name  string
			slow  int
			each  int
			pause time.Duration
			whole bool
		}{
			{"quick", 0, 0, 0, true},
			{"a byte each minute", 50, 1, time.Minute, true},
			{"in steps", 5, 190_000, 46 * time.Second, true},
			{"too slow", 1, 1, Patience + 5*time.Second, false},
			{"a pause in the middle", 2, 500_000, Patience + 5*time.Second, false},
		} {
			t.Run(tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					slow := 0
					in, wrote, _ := answers(t, config, func(c net.Conn) net.Conn { return slowly{c, &slow, tc.each, tc.pause} })
					slow = tc.slow // after the handshake, which has little time
					resp, err := http.ReadResponse(in, nil)
					n := int64(0)
					if err == nil {
						n, err = io.Copy(io.Discard, resp.Body)
					}
					if (err == nil && n == answerLength) != tc.whole {
						t.Errorf("tls %t: %d bytes, %v", config != nil, n, err)
					}
					if err := <-wrote; (err == nil) != tc.whole {
						t.Errorf("tls %t: the write: %v", config != nil, err)
					}
				})
			})
		}
	}
}

// Nobody reads: the connection ends when patience does, and not long after.
func TestUnread(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	for _, config := range []*tls.Config{nil, {Certificates: certified.TLS.Certificates}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			_, wrote, srv := answers(t, config, func(c net.Conn) net.Conn { return c })
			<-wrote
			if took := time.Since(start); took < Patience || took > Patience+2*lookEvery {
				t.Errorf("tls %t: the write took %v", config != nil, took)
			}
			if err := srv.Shutdown(t.Context()); err != nil || time.Since(start) > Patience+4*lookEvery {
				t.Errorf("tls %t: %v after %v", config != nil, err, time.Since(start))
			}
		})
	}
}

// When usher ends, patience is short, also for writes that have waited for a while.
func TestUnreadWhenUsherEnds(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{time.Minute: 0, lookEvery / 2: lastPatience} {
		synctest.Test(t, func(t *testing.T) {
			_, _, srv := answers(t, nil, func(c net.Conn) net.Conn { return c })
			time.Sleep(waited)
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			err := srv.Shutdown(ctx)
			if took := time.Since(start); err != nil || took < want-lookEvery || took > want+3*lookEvery {
				t.Errorf("after %v: took %v, %v", waited, took, err)
			}
		})
	}
}

// Nor does usher wait for the other ends of idle connections, which need not read TLS's goodbye.
func TestIdleConnectionsEndAtOnce(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	synctest.Test(t, func(t *testing.T) {
		dial, _, srv, _ := crowd(t, &tls.Config{Certificates: certified.TLS.Certificates}, MaxHeads)
		for range 10 {
			if status := statusOf(tls.Client(dial(), &tls.Config{InsecureSkipVerify: true}), head("/", 1, true)); status != 200 {
				t.Fatal(status)
			}
		}
		synctest.Wait()
		start := time.Now()
		if err := srv.Shutdown(t.Context()); err != nil || time.Since(start) > lookEvery {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		time.Sleep(time.Minute) // until all connections have ended
	})
}

// What the other end confirms counts, also if no write gets anywhere.
func TestConfirmedBytesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, there := net.Pipe()
		start := time.Now()
		s := &socket{
			Conn: there, patience: func() time.Duration { return Patience }, log: slog.New(slog.DiscardHandler),
			acked: func() uint64 { return uint64(min(time.Since(start), time.Hour) / (46 * time.Second)) },
		}
		n, err := s.Write(make([]byte, answerLength))
		if took := time.Since(start); n != 0 || !errors.Is(err, errUnread) || took < time.Hour || took > time.Hour+2*Patience {
			t.Errorf("%d bytes after %v, %v", n, took, err)
		}
		if _, err := s.Write([]byte("x")); err == nil || time.Since(start) > time.Hour+2*Patience {
			t.Errorf("a further write: %v", err)
		}
	})
}

// A deadline that somebody sets goes before patience, also one that is set while a write waits.
func TestWriteDeadline(t *testing.T) {
	for name, set := range map[string]func(*socket){
		"before":     func(s *socket) { s.SetWriteDeadline(time.Now().Add(10 * time.Second)) },
		"of both":    func(s *socket) { s.SetDeadline(time.Now().Add(10 * time.Second)) },
		"taken back": func(s *socket) { s.SetWriteDeadline(time.Now().Add(time.Second)); s.SetWriteDeadline(time.Time{}) },
		"while it waits": func(s *socket) {
			time.AfterFunc(9700*time.Millisecond, func() { s.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)) })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, there := net.Pipe()
			s := &socket{Conn: there, patience: func() time.Duration { return Patience }, acked: func() uint64 { return 0 }, log: slog.New(slog.DiscardHandler)}
			start, want := time.Now(), 10*time.Second
			if set(s); name == "taken back" {
				want = Patience
			}
			_, err := s.Write([]byte("x"))
			if took := time.Since(start); took != want || errors.Is(err, os.ErrDeadlineExceeded) == (name == "taken back") {
				t.Errorf("%s: %v after %v", name, err, took)
			}
		})
	}
}

// On a real connection: what the other end takes is confirmed, and a connection that is given up ends with a
// reset, not as if the answer were complete.
func TestUnreadOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	guarded := Listener(l, nil, time.Millisecond, slog.New(slog.NewTextHandler(&log, nil)))
	defer guarded.Close()
	client := dial(t, l.Addr().String(), nil)
	accepted, err := guarded.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := accepted.(*conn).Conn.(*socket)
	before := s.acked()
	for err == nil { // until nothing more fits
		_, err = accepted.Write(make([]byte, answerLength))
	}
	if !errors.Is(err, errUnread) || !strings.Contains(log.String(), "nobody reads") {
		t.Errorf("%v: %s", err, &log)
	}
	if after := s.acked(); after <= before && runtime.GOOS == "linux" {
		t.Errorf("%d bytes confirmed, then %d", before, after)
	}
	accepted.Close()
	if _, err := io.Copy(io.Discard, client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the other end sees %v", err)
	}
}

// While strangers use up the memory for heads, a whole TLS record of a request still has room: TLS must read
// all of it before anybody knows where its head ends.
func TestRecordWhileHeadsAreUsedUp(t *testing.T) {
	full := &memory{limit: 1 << 10}
	full.used.Store(full.limit)
	for _, size := range []int{smallHead, smallHead + wholeRecord, smallHead + wholeRecord + 1} {
		here, there := net.Pipe()
		go func() { _, _ = here.Write(make([]byte, size)) }()
		s := &socket{Conn: there, records: holding{of: full}}
		got, err := 0, error(nil)
		for p := make([]byte, 4<<10); got < size && err == nil; {
			var n int
			n, err = s.Read(p)
			got += n
		}
		if fits := size <= smallHead+wholeRecord; (err == nil) != fits {
			t.Errorf("%d bytes: %v", size, err)
		}
		here.Close()
		there.Close()
	}
}
