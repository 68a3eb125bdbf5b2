package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"runtime"
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

// The sweep closes what the other side has closed or spoken on, and nothing else.
func TestSweepLooks(t *testing.T) {
	closed, release := make(chan struct{}, 2), make(chan struct{})
	addr, count := serve(t, func(conn net.Conn, from *bufio.Reader, nth int) {
		readCall(from)
		<-release
		io.WriteString(conn, okAnswer)
		if nth == 0 {
			conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, from)
			closed <- struct{}{}
			return
		}
		io.Copy(io.Discard, from)
	})
	cl := newClient(t)
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() { call(cl, request(t, t.Context(), "GET", "http://"+addr, nil)) })
	}
	for count() < 2 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	running.Wait()
	for _, c := range cl.pool.idle {
		c.idleSince = c.idleSince.Add(-10 * time.Second) // longer than from one sweep to the next
	}
	for len(cl.pool.idle) == 2 {
		time.Sleep(time.Millisecond)
		cl.pool.sweep()
	}
	<-closed
	if cl.pool.sweep(); len(cl.pool.idle) != 1 {
		t.Errorf("%d connections are left of one that was closed and one that was not", len(cl.pool.idle))
	}
}

// stuck is a connection whose check hangs.
type stuck struct {
	net.Conn
	free <-chan struct{}
}

func (s stuck) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		<-s.free
	}
	return s.Conn.SetReadDeadline(t)
}

// While a sweep checks connections, calls go on; and those that it has checked are there again,
// unless the client was closed meanwhile.
func TestSweepHoldsNobodyUp(t *testing.T) {
	for _, closed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			free := make(chan struct{})
			var made, open atomic.Int32
			cl := newClient(t, func(c *Config) {
				c.Timeout = 0
				c.Dial = func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					made.Add(1)
					open.Add(1)
					go func() {
						for from := bufio.NewReader(far); ; io.WriteString(far, okAnswer) {
							if _, _, err := readCall(from); err != nil {
								open.Add(-1)
								return
							}
						}
					}()
					return stuck{near, free}, nil
				}
			})
			get := func() {
				if _, _, err := call(cl, request(t, t.Context(), "GET", "http://service", nil)); err != nil {
					t.Error(err)
				}
			}
			get()
			time.Sleep(7 * time.Second) // the sweep has begun
			synctest.Wait()
			get()
			if made.Load() != 2 {
				t.Errorf("%d connections, want a second", made.Load())
			}
			if closed {
				cl.CloseIdleConnections()
			}
			close(free)
			synctest.Wait()
			time.Sleep(time.Second)
			if want := map[bool]int32{false: 2, true: 0}[closed]; open.Load() != want {
				t.Errorf("closed %v: %d connections are open, want %d", closed, open.Load(), want)
			}
			cl.CloseIdleConnections()
		})
	}
}

// While a machine sleeps the monotonic clock stands still; the wall clock may be set back.
func TestAge(t *testing.T) {
	now := time.Now()
	c := &conn{idleSince: now}
	for _, tc := range []struct {
		now  time.Time
		want time.Duration
	}{
		{now.Add(time.Minute), time.Minute},
		{now.Add(time.Hour).Round(0), time.Hour}, // by the wall clock alone
	} {
		if got := c.age(tc.now); got < tc.want-time.Second || got > tc.want+time.Second {
			t.Errorf("%v, want %v", got, tc.want)
		}
	}
}

// Idle connections need no goroutines.
func TestNoGoroutinesWhileIdle(t *testing.T) {
	release := make(chan struct{})
	addr, count := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
		for {
			if _, _, err := readCall(from); err != nil {
				return
			}
			<-release
			io.WriteString(conn, okAnswer)
		}
	})
	cl := newClient(t)
	before := runtime.NumGoroutine()
	var running sync.WaitGroup
	for range 50 {
		running.Go(func() {
			if _, _, err := call(cl, request(t, t.Context(), "GET", "http://"+addr, nil)); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	running.Wait()
	for n := 0; runtime.NumGoroutine() > before+count(); n++ { // the server's, one each
		if n == 1000 {
			t.Fatalf("%d goroutines for %d idle connections", runtime.NumGoroutine()-before-count(), count())
		}
		time.Sleep(time.Millisecond) // those of the calls are about to end
	}
	cl.CloseIdleConnections()
}

// While a sweep looks at idle connections others come back. It closes only as many as there is no room for.
func TestSweepClosesOnlyTheSurplus(t *testing.T) {
	p := pool{most: 3, limit: time.Hour}
	defer p.empty()
	var others []net.Conn
	idle := func() *conn {
		here, there := net.Pipe()
		t.Cleanup(func() { here.Close(); there.Close() })
		others = append(others, there)
		return &conn{Conn: here}
	}
	oldest, older := idle(), idle()
	p.put(idle())
	p.put(idle())
	p.add(true, oldest, older)
	if len(p.idle) != 3 || p.idle[0] != older {
		t.Errorf("%d are left", len(p.idle))
	}
	if _, err := others[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the oldest is still open: %v", err)
	}
}
