package command

import (
	"os"

	"golang.org/x/sys/unix"
)

// hideMemory keeps other processes of the same user out of this one: its memory, and the
// environment that it was started with (/proc/PID/environ), where the secrets are. Root
// can still look. It does not hold for what this process starts.
func hideMemory() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
