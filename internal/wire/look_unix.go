//go:build unix

package wire

import (
	"io"
	"os"
	"syscall"
	"time"
)

// readNow reads what has arrived, and does not wait.
func (s *socket) readNow(p []byte) (n int, err error) {
	if s.raw == nil {
		return s.readWithin(p, time.Millisecond)
	}
	failed := s.raw.Read(func(fd uintptr) (done bool) {
		for {
			if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
				return true
			}
		}
	})
	switch {
	case failed != nil:
		return 0, failed
	case err == syscall.EAGAIN:
		return 0, nothingYet{}
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}
