package guard

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A kernel asks the operating system about a connection.
type kernel struct{ conn syscall.RawConn } // nil: it knows nothing

func askKernel(c net.Conn) (k kernel) {
	if conn, ok := c.(syscall.Conn); ok {
		k.conn, _ = conn.SyscallConn()
	}
	return k
}

// info is nil if the connection is not TCP.
func (k kernel) info() (info *unix.TCPInfo) {
	if k.conn != nil {
		_ = k.conn.Control(func(fd uintptr) {
			info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
	}
	return info
}

// acked is how many bytes the other end has confirmed; 0: that is unknown.
func (k kernel) acked() uint64 {
	if info := k.info(); info != nil {
		return info.Bytes_acked
	}
	return 0
}

// lastByte is when the last bytes came from the other end, read or not; zero: that is unknown.
func (k kernel) lastByte() (at time.Time) {
	if info := k.info(); info != nil {
		at = time.Now().Add(-time.Duration(info.Last_data_recv) * time.Millisecond)
	}
	return at
}

// ended says whether the other end has closed the connection, or its half of it, whatever it has sent before.
func (k kernel) ended() (ended, known bool) {
	if k.conn == nil {
		return false, false
	}
	err := k.conn.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for {
			if _, err := unix.Poll(poll, 0); err != unix.EINTR {
				ended = poll[0].Revents != 0
				return
			}
		}
	})
	return ended || err != nil, true
}
