//go:build !race

package socket

import (
	"syscall"
	"unsafe"
)

func read(fd uintptr, p []byte) (int, error)  { return call(syscall.SYS_READ, fd, p) }
func write(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_WRITE, fd, p) }

func call(trap, fd uintptr, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
