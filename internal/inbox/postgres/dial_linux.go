package postgres

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout bounds how long what was sent may stay without an answer from the other machine: a server that is gone is
// noticed in seconds, not in a quarter of an hour.
func userTimeout(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 15_000) // a unix socket has none
	})
}
