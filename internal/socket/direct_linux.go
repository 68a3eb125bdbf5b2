package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Direct returns conn with reads and writes that the runtime does not see. For all else
// it is the same: its deadlines, its errors, and that it may be used by many at once.
// A connection of another kind than TCP is returned as it is.
func Direct(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return conn
	}
	d := &direct{TCPConn: tcp, raw: raw}
	d.in.try, d.out.try = d.tryRead, d.tryWrite
	return d
}

type direct struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out half
	// streak is how many reads and writes in a row did not have to wait.
	streak atomic.Int32
}

// Somebody who never has to wait would keep others from running, too. So after
// maxStreak comes a call that the runtime sees, and a write that may take long is one.
const (
	maxStreak = 16
	longWrite = 1 << 20
)

// half is one direction of a connection, and what is being done there.
type half struct {
	mu  sync.Mutex // one at a time
	p   []byte     // to be read into, or to be written
	n   int        // how much of it was
	err error
	try func(fd uintptr) (done bool) // made once: it would be allocated for each call
}

func (d *direct) Read(p []byte) (int, error) {
	if len(p) == 0 || d.tooLong() {
		return d.TCPConn.Read(p)
	}
	h := &d.in
	h.mu.Lock()
	defer h.mu.Unlock()
	h.p, h.n, h.err = p, 0, nil
	err := d.raw.Read(h.try)
	h.p = nil
	switch {
	case err != nil || h.err != nil:
		return 0, d.failure("read", err, h.err)
	case h.n == 0:
		return 0, io.EOF
	}
	return h.n, nil
}

func (d *direct) Write(p []byte) (int, error) {
	if len(p) == 0 || len(p) > longWrite || d.tooLong() {
		return d.TCPConn.Write(p)
	}
	h := &d.out
	h.mu.Lock()
	defer h.mu.Unlock()
	h.p, h.n, h.err = p, 0, nil
	err := d.raw.Write(h.try)
	h.p = nil
	if err != nil || h.err != nil {
		return h.n, d.failure("write", err, h.err)
	}
	return h.n, nil
}

// tooLong counts a call, and says whether it ends a streak.
func (d *direct) tooLong() bool {
	if d.streak.Add(1) <= maxStreak {
		return false
	}
	d.streak.Store(0)
	return true
}

// tryRead and tryWrite return false when there is something to wait for: they are
// called again when it has come, or not, when it was given up.

func (d *direct) tryRead(fd uintptr) (done bool) {
	for {
		n, err := read(fd, d.in.p)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			d.streak.Store(0)
			return false
		}
		d.in.n, d.in.err = n, err
		return true
	}
}

func (d *direct) tryWrite(fd uintptr) (done bool) {
	for d.out.n < len(d.out.p) {
		n, err := write(fd, d.out.p[d.out.n:])
		switch err {
		case nil:
			d.out.n += n
		case syscall.EINTR:
		case syscall.EAGAIN:
			d.streak.Store(0)
			return false
		default:
			d.out.err = err
			return true
		}
	}
	return true
}

// failure is the error as net has it, of the waiting or of the call.
func (d *direct) failure(op string, waiting, call error) error {
	err := waiting
	if err == nil {
		err = os.NewSyscallError(op, call)
	} else if raw, ok := errors.AsType[*net.OpError](err); ok {
		err = raw.Err // that of "raw-read"
	}
	return &net.OpError{Op: op, Net: "tcp", Source: d.LocalAddr(), Addr: d.RemoteAddr(), Err: err}
}
