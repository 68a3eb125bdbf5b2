package guard

import (
	"container/list"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxConns is how many connections a port has at most.
	maxConns = 2048
	// patience is how long the other end of a connection may take nothing of an answer.
	patience = 2 * time.Minute
	// lastPatience is the same while usher shuts down: an answer that nobody takes must not use up the grace.
	lastPatience = 5 * time.Second
	// lookEvery is how often a write that waits looks whether the other end has taken anything.
	lookEvery = time.Second
	// writePiece is how much of an answer is written at once.
	writePiece = 32 << 10
	// sendBuffer is how much of an answer waits in the operating system: a large buffer would make a slow reader look
	// like one that takes nothing.
	sendBuffer = 128 << 10
)

// listener limits how many connections there are, and how long the other end of each may take nothing of an answer.
type listener struct {
	net.Listener
	room    int // for so many connections
	log     *slog.Logger
	crowded rate.Sometimes // one log line is enough
	closed  atomic.Pointer[time.Time]

	mu    sync.Mutex
	conns map[*conn]bool
	quiet list.List // those of conns that no handler works for, the one that has been quiet longest first
}

func newListener(l net.Listener, room int, log *slog.Logger) *listener {
	return &listener{
		Listener: l, room: room, log: log, crowded: rate.Sometimes{Interval: 10 * time.Second},
		conns: make(map[*conn]bool),
	}
}

// Accept closes the connection that has been quiet longest if there are too many. So strangers that open many, and
// send nothing or a head byte by byte, keep nobody else out.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if c, ok := accepted.(interface{ SetWriteBuffer(int) error }); ok {
		_ = c.SetWriteBuffer(sendBuffer) // fails only if the connection has ended already
	}
	c := &conn{Conn: accepted, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c], c.place = true, l.quiet.PushBack(c)
	if len(l.conns) > l.room {
		l.crowded.Do(func() { l.log.Warn("too many connections: usher closes quiet ones", "limit", l.room) })
		oldest := l.quiet.Front().Value.(*conn) // perhaps the new one
		l.forget(oldest)
		oldest.Conn.Close() // net/http finds it closed, and ends it
	}
	return c, nil
}

// Close is what a server calls first when it shuts down.
func (l *listener) Close() error {
	now := time.Now()
	l.closed.Store(&now)
	return l.Listener.Close()
}

// limit returns when an answer ends of which the other end last took a part at that time.
func (l *listener) limit(took time.Time) time.Time {
	closed := l.closed.Load()
	switch {
	case closed == nil:
		return took.Add(patience)
	case closed.After(took):
		return closed.Add(lastPatience)
	}
	return took.Add(lastPatience)
}

// forget is called with mu locked.
func (l *listener) forget(c *conn) {
	delete(l.conns, c)
	if c.place != nil {
		l.quiet.Remove(c.place)
		c.place = nil
	}
}

// conn is a connection, below TLS.
type conn struct {
	net.Conn
	of      *listener
	place   *list.Element // in of.quiet; nil: a handler works for it
	limited atomic.Bool   // somebody else has set a deadline for writes
}

// connKey is the key of a request's conn in its context.
type connKey struct{}

// working says whether a handler works for the connection.
func (c *conn) working(yes bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	switch {
	case yes && c.place != nil:
		c.of.quiet.Remove(c.place)
		c.place = nil
	case !yes && c.place == nil && c.of.conns[c]:
		c.place = c.of.quiet.PushBack(c)
	}
}

// body is that of a request. A handler that waits for it does not work: strangers send bodies that never end.
type body struct {
	io.ReadCloser
	of *conn
}

func (b body) Read(p []byte) (int, error) {
	b.of.working(false)
	defer b.of.working(true)
	return b.ReadCloser.Read(p)
}

// Write may take any time, as long as the other end takes a part now and then.
func (c *conn) Write(p []byte) (n int, err error) {
	for took := time.Now(); n < len(p); {
		if !c.limited.Load() {
			_ = c.Conn.SetWriteDeadline(time.Now().Add(lookEvery)) // fails only if the connection has ended
		}
		m, err := c.Conn.Write(p[n:min(len(p), n+writePiece)])
		n += m
		now := time.Now()
		if m > 0 {
			took = now
		}
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded) || c.limited.Load():
			return n, err
		case !now.Before(c.of.limit(took)):
			_ = c.SetLinger(0) // what nobody has taken is dropped at once
			c.of.log.Info("connection closed: nobody reads the answer", "from", c.RemoteAddr().String())
			return n, err
		}
	}
	return n, nil
}

// SetWriteDeadline limits writes further, until it is called with zero.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.limited.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

// CloseWrite is that of the TCP connection or unix socket. With it net/http tells a caller whose body it does not
// read that the answer is complete.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SetLinger is that of the TCP connection; see ResetOnClose.
func (c *conn) SetLinger(seconds int) error {
	if tcp, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// ResetOnClose says how the connection of a request ends when it is closed, also by a kill: with a TCP reset, or
// normally. A unix socket has no reset.
func ResetOnClose(r *http.Request, reset bool) {
	seconds := -1
	if reset {
		seconds = 0
	}
	if c, ok := r.Context().Value(connKey{}).(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(seconds) // fails only if the connection has ended
	}
}
