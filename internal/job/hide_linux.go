package job

import (
	"os"

	"golang.org/x/sys/unix"
)

// hideMemory keeps other processes of the same user from reading this one's memory, and the
// environment that it was started with (/proc/PID/environ), where the secrets are. Root can
// still read them. Processes that this one starts do not inherit it.
func hideMemory() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
