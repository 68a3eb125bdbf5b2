package postgres

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout sets how long sent bytes may stay unacknowledged: then a server that is gone is noticed within seconds,
// and not after a quarter of an hour.
func userTimeout(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// It fails on a unix socket, which needs none.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 15_000)
	})
}
