//go:build unix

package wire

import (
	"io"
	"net"
	"os"
	"syscall"
)

// descriptor returns the descriptor of a connection, or nil if it has none.
func descriptor(c net.Conn) (raw syscall.RawConn) {
	if sc, ok := c.(syscall.Conn); ok {
		raw, _ = sc.SyscallConn() // fails only on a closed connection
	}
	return raw
}

// readNow reads what has arrived. It does not wait.
func readNow(fd uintptr, p []byte) (n int, err error) {
	for {
		switch n, err = syscall.Read(int(fd), p); {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return 0, nothingYet{}
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}
