package guard

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
)

const (
	// Patience is how long the other end of a connection may take nothing of an answer.
	Patience = 2 * time.Minute
	// LocalPatience is the same on a local port, where programs work on large answers while they read them.
	LocalPatience = 10 * time.Minute
	// lastPatience is the same on every port while usher shuts down.
	lastPatience = 5 * time.Second

	// lookEvery is how often a write that waits looks whether the other end has taken anything.
	lookEvery = time.Second
	// writePiece is the most that is written at once. A write of more would show what the other end has
	// taken only at its end, where a write cannot be continued.
	writePiece = 128 << 10
)

// continues says whether a write that has met its deadline can be continued. Not on Windows: it is not
// certain how much of that write has left. There a write waits for all of its patience, also when usher ends.
const continues = runtime.GOOS != "windows"

// errUnread ends a connection whose other end takes nothing.
var errUnread = &net.OpError{Op: "write", Err: errors.New("the other end takes nothing of the answer")}

// socket is a connection below TLS. A write may take any time, as long as the other end takes some of
// it now and then. If it takes nothing for too long, the write fails, and the connection is over.
//
// What counts is what happens at the socket, not that a write returns: a reader of 4 KB/s is steady,
// but its kernel asks for more only every 46 s, and ours may let a write continue only when a third
// of a buffer of megabytes is free.
type socket struct {
	net.Conn
	patience func() time.Duration // becomes shorter when usher shuts down
	kernel   kernel               // what the operating system knows of it
	acked    func() uint64        // how much the other end has confirmed; always 0 if that is unknown
	log      *slog.Logger

	unread bool // a write has failed with errUnread; used by Write only

	records holding // what TLS has of MaxHeads, until the connection ends: TLS keeps its buffers
	unused  int64   // how much was read since net/http got something; used by reads only
	greeted bool    // net/http has got something; used by reads only

	mu    sync.Mutex // guards what follows
	limit time.Time  // the deadline that others have set; zero: none
	look  time.Time  // when a write looks again
}

// Read counts what TLS reads and cannot use yet: a handshake, and later what is no request. The last read
// of a request may be large, so it does not count.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	excess := s.unused - wholeRecord
	s.unused += int64(n)
	if !s.greeted { // a handshake, and after it one record: what follows the head in it is a body
		excess = s.unused - smallHead - wholeRecord
	}
	if !s.records.reach(excess) {
		return 0, errCrowded
	}
	return n, err
}

func (s *socket) Write(p []byte) (n int, err error) {
	if s.unread { // such as TLS's farewell, which would wait once more
		return 0, errUnread
	}
	now := time.Now()
	taken, acked := now, uint64(0)
	for {
		if err := s.arm(now); err != nil {
			return n, err
		}
		m, err := s.Conn.Write(p[n:min(len(p), n+writePiece)])
		n += m
		if err == nil && n == len(p) {
			return n, nil
		}
		now = time.Now()
		if err == nil {
			taken = now
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || s.limited(now) {
			return n, err
		}
		if confirmed := s.acked(); m > 0 || confirmed != acked {
			taken, acked = now, confirmed
		}
		if now.Sub(taken) >= s.patience() || !continues {
			s.giveUp()
			return n, errUnread
		}
	}
}

// giveUp makes the end of the connection a reset: what the other end has not taken is dropped at once.
func (s *socket) giveUp() {
	s.unread = true
	_ = s.SetLinger(0) // fails on a unix socket, which has no reset
	s.log.Info("connection closed: nobody reads the answer", "from", s.RemoteAddr().String())
}

// arm sets the deadline of the next write: when to look again, or the limit if that comes first. Most
// writes find a deadline that is far enough away.
func (s *socket) arm(now time.Time) error {
	every := lookEvery
	if !continues {
		every = s.patience()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.look.Sub(now) > every/2 {
		return nil
	}
	s.look = now.Add(every)
	return s.Conn.SetWriteDeadline(s.deadline())
}

// deadline is called with mu locked.
func (s *socket) deadline() time.Time {
	if !s.limit.IsZero() && s.limit.Before(s.look) {
		return s.limit
	}
	return s.look
}

// limited reports whether the deadline that others have set has passed.
func (s *socket) limited(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.limit.IsZero() && !now.Before(s.limit)
}

// SetWriteDeadline limits writes further, whatever the other end takes.
func (s *socket) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.IsZero() && s.limit.IsZero() { // net/http calls it after each answer
		return nil
	}
	s.limit = t
	return s.Conn.SetWriteDeadline(s.deadline())
}

func (s *socket) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetLinger is that of the TCP connection.
func (s *socket) SetLinger(seconds int) error {
	if tcp, ok := s.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}

// CloseWrite is that of the TCP connection or unix socket.
func (s *socket) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
