package socket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// pair returns two ends of a connection.
func pair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// TestLikeNet does the same to a connection as it comes and to a direct one.
func TestLikeNet(t *testing.T) {
	past := time.Unix(1, 0)
	patience := func() time.Time { return time.Now().Add(20 * time.Millisecond) }
	read := func(c net.Conn, size int) (int, error) { return c.Read(make([]byte, size)) }
	for _, tc := range []struct {
		name string
		do   func(near net.Conn, far *net.TCPConn) (int, error)
	}{
		{"read what is there", func(near net.Conn, far *net.TCPConn) (int, error) {
			far.Write([]byte("hello"))
			return io.ReadFull(near, make([]byte, 5))
		}},
		{"read what comes later", func(near net.Conn, far *net.TCPConn) (int, error) {
			time.AfterFunc(20*time.Millisecond, func() { far.Write([]byte("hello")) })
			return read(near, 100)
		}},
		{"read nothing", func(near net.Conn, _ *net.TCPConn) (int, error) { return read(near, 0) }},
		{"read to the end", func(near net.Conn, far *net.TCPConn) (int, error) {
			far.Write([]byte("hello"))
			far.CloseWrite()
			all, err := io.ReadAll(near)
			if err != nil {
				return len(all), err
			}
			return read(near, 1)
		}},
		{"read after a reset", func(near net.Conn, far *net.TCPConn) (int, error) {
			far.SetLinger(0)
			far.Close()
			return read(near, 1)
		}},
		{"read beyond a deadline", func(near net.Conn, _ *net.TCPConn) (int, error) {
			near.SetReadDeadline(patience())
			return read(near, 1)
		}},
		{"read with a deadline in the past", func(near net.Conn, far *net.TCPConn) (int, error) {
			far.Write([]byte("hello"))
			near.SetDeadline(past)
			return read(near, 1)
		}},
		{"read with a deadline set meanwhile", func(near net.Conn, _ *net.TCPConn) (int, error) {
			time.AfterFunc(20*time.Millisecond, func() { near.SetReadDeadline(past) })
			return read(near, 1)
		}},
		{"read after a deadline was taken back", func(near net.Conn, far *net.TCPConn) (int, error) {
			near.SetReadDeadline(past)
			read(near, 1)
			near.SetReadDeadline(time.Time{})
			far.Write([]byte("hello"))
			return io.ReadFull(near, make([]byte, 5))
		}},
		{"read after Close", func(near net.Conn, _ *net.TCPConn) (int, error) {
			near.Close()
			return read(near, 1)
		}},
		{"read with a Close meanwhile", func(near net.Conn, _ *net.TCPConn) (int, error) {
			time.AfterFunc(20*time.Millisecond, func() { near.Close() })
			return read(near, 1)
		}},
		{"write", func(near net.Conn, _ *net.TCPConn) (int, error) { return near.Write([]byte("hello")) }},
		{"write nothing", func(near net.Conn, _ *net.TCPConn) (int, error) { return near.Write(nil) }},
		{"write more than is taken at once", func(near net.Conn, far *net.TCPConn) (int, error) {
			go io.Copy(io.Discard, far)
			return near.Write(make([]byte, 32*longWrite))
		}},
		{"write nothing after CloseWrite", func(near net.Conn, _ *net.TCPConn) (int, error) {
			near.(interface{ CloseWrite() error }).CloseWrite()
			return near.Write(nil)
		}},
		{"write after Close", func(near net.Conn, _ *net.TCPConn) (int, error) {
			near.Close()
			return near.Write([]byte("hello"))
		}},
		{"write with a deadline in the past", func(near net.Conn, _ *net.TCPConn) (int, error) {
			near.SetWriteDeadline(past)
			return near.Write([]byte("hello"))
		}},
		{"write after a reset", func(near net.Conn, far *net.TCPConn) (int, error) {
			far.SetLinger(0)
			far.Close()
			read(near, 1) // so that it has come
			return near.Write([]byte("hello"))
		}},
		{"write after CloseWrite", func(near net.Conn, _ *net.TCPConn) (int, error) {
			near.(interface{ CloseWrite() error }).CloseWrite()
			return near.Write([]byte("hello"))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			outcome := func(wrap func(net.Conn) net.Conn) string {
				near, far := pair(t)
				n, err := tc.do(wrap(near), far)
				return describe(n, err, near)
			}
			want := outcome(func(c net.Conn) net.Conn { return c })
			if got := outcome(Direct); got != want {
				t.Errorf("%s\nbut net's: %s", got, want)
			}
		})
	}
}

// describe puts all into words that a caller could tell one error from another by.
func describe(n int, err error, conn net.Conn) string {
	text := fmt.Sprintf("%d, %T, %v", n, err, err)
	for _, addr := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
		if addr != nil {
			text = strings.ReplaceAll(text, addr.String(), "ADDR")
		}
	}
	for _, target := range []error{
		io.EOF, net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET, syscall.EPIPE,
	} {
		text += fmt.Sprintf(", %v", errors.Is(err, target))
	}
	if ne, ok := errors.AsType[net.Error](err); ok {
		text += fmt.Sprintf(", timeout %v", ne.Timeout())
	}
	return text
}

// TestWriteBreaksOff counts what was written before a deadline: how much that is differs
// from one connection to the next, but it is what the other end gets.
func TestWriteBreaksOff(t *testing.T) {
	near, far := pair(t)
	conn := Direct(near)
	conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	sum, last := 0, 0
	var err error
	for err == nil {
		last, err = conn.Write(make([]byte, longWrite))
		sum += last
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || sum == 0 || last == longWrite {
		t.Fatalf("%d, the last time %d, %v", sum, last, err)
	}
	conn.Close()
	if got, err := io.Copy(io.Discard, far); err != nil || got != int64(sum) {
		t.Errorf("%d were written, %d came: %v", sum, got, err)
	}
}

// TestManyReaders has each byte come to one of them, once.
func TestManyReaders(t *testing.T) {
	near, far := pair(t)
	conn := Direct(near)
	const size = 1 << 20
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i % 251)
	}
	go func() {
		for part := range slices.Chunk(sent, 1000) {
			far.Write(part)
		}
		far.CloseWrite()
	}()
	var count [251]atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			p := make([]byte, 700)
			for {
				n, err := conn.Read(p)
				for _, b := range p[:n] {
					count[b].Add(1)
				}
				if err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for b := range count {
		if got, want := count[b].Load(), int64((size-b+250)/251); got != want {
			t.Fatalf("byte %d: %d times, not %d", b, got, want)
		}
	}
}

// TestBytes sends a lot both ways at once, with many writers.
func TestBytes(t *testing.T) {
	near, far := pair(t)
	a, b := Direct(near), Direct(far)
	const writers, each, size = 4, 500, 10_007
	var all sync.WaitGroup
	for _, conn := range []net.Conn{a, b} {
		var sending sync.WaitGroup
		for i := range writers {
			sending.Go(func() {
				line := append(bytes.Repeat([]byte{'a' + byte(i)}, size-1), '\n')
				for range each {
					if n, err := conn.Write(line); n != size || err != nil {
						t.Error(n, err)
						return
					}
				}
			})
		}
		all.Go(func() { sending.Wait(); conn.(interface{ CloseWrite() error }).CloseWrite() })
		all.Go(func() {
			got, err := io.ReadAll(conn)
			if err != nil {
				t.Error(err)
			}
			lines := bytes.Split(bytes.TrimSuffix(got, []byte("\n")), []byte("\n"))
			if len(lines) != writers*each {
				t.Errorf("%d lines", len(lines))
			}
			for _, line := range lines {
				if len(line) != size-1 || bytes.Count(line, line[:1]) != len(line) {
					t.Error("two writes are mixed")
					return
				}
			}
		})
	}
	all.Wait()
}

// TestOthersRun has one goroutine that never waits, on the only thread there is for Go
// code, after everything was idle. What others do must go on meanwhile.
func TestOthersRun(t *testing.T) {
	for name, call := range map[string]func(net.Conn) error{
		"reads":  func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err },
		"writes": func(c net.Conn) error { _, err := c.Write(make([]byte, 1)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			conn := Direct(fed(t))
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			if _, err := conn.Read(make([]byte, 1)); err != nil { // waits
				t.Fatal(err)
			}
			var ran atomic.Bool
			go ran.Store(true)
			for n := 0; !ran.Load(); n++ {
				if err := call(conn); err != nil || n > feedSize/2 {
					t.Fatalf("after %d calls nobody else has run: %v", n, err)
				}
			}
		})
	}
}

// fed returns a connection from another process, which sends a lot and reads what it
// gets. A timer or a system call of this process would wake the thread that keeps watch.
func fed(t *testing.T) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	feed := exec.Command(os.Args[0])
	feed.Env = append(os.Environ(), feedTo+"="+l.Addr().String())
	if err := feed.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); feed.Wait() })
	return conn
}

const (
	feedTo   = "SOCKET_TEST_FEED" // an address
	feedSize = 4 << 20
)

func TestMain(m *testing.M) {
	to := os.Getenv(feedTo)
	if to == "" {
		os.Exit(m.Run())
	}
	conn, err := net.Dial("tcp", to)
	if err != nil {
		log.Fatal(err)
	}
	// Later, when nothing is left to do for the other end.
	time.AfterFunc(100*time.Millisecond, func() { conn.Write(make([]byte, feedSize)) })
	io.Copy(io.Discard, conn) // until that hangs up
}
