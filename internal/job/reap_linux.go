package job

import (
	"encoding/binary"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// As process 1 of a container usher becomes the parent of every process whose own parent has ended. If usher did not
// wait for these orphans, each of them would stay in the table of processes as a zombie until the container ends.

// notifyOfEnds sends a signal to c whenever a child has ended.
func notifyOfEnds(c chan<- os.Signal) { signal.Notify(c, syscall.SIGCHLD) }

// reapOrphans waits for all children that have ended, except those that usher has started itself: os/exec waits for
// them, and would not get their exit code if somebody else did.
func reapOrphans(ours ...int) {
	for {
		pid := endedChild()
		if pid <= 0 || slices.Contains(ours, pid) { // os/exec is about to wait for it
			return
		}
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	}
}

// endedChild returns the process id of a child that has ended and that nobody has waited for, or 0. It leaves the
// child as it is.
func endedChild() int {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0
		}
		break
	}
	// unix.Siginfo has no name for the process id: it follows three numbers of 32 bits, aligned as a pointer.
	const at = (12 + unsafe.Sizeof(uintptr(0)) - 1) / unsafe.Sizeof(uintptr(0)) * unsafe.Sizeof(uintptr(0))
	return int(int32(binary.NativeEndian.Uint32((*[unsafe.Sizeof(info)]byte)(unsafe.Pointer(&info))[at:])))
}
