package job

import (
	"os"

	"golang.org/x/sys/unix"
)

// hideMemory prevents other processes of the same user from reading this process's memory and its initial
// environment (/proc/PID/environ), which have the secrets in them. Root can still read both. Child
// processes do not inherit this.
func hideMemory() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
