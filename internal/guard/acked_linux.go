package guard

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// ackedBytes returns a func that says how many bytes the other end of a TCP connection has confirmed. On
// any other connection it says 0.
func ackedBytes(c net.Conn) func() uint64 {
	none := func() uint64 { return 0 }
	conn, ok := c.(syscall.Conn)
	if !ok {
		return none
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return none
	}
	return func() (acked uint64) {
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				acked = info.Bytes_acked
			}
		})
		return acked
	}
}
