package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// allocate takes room for a file on the disk without writing it, which not every file system can.
func allocate(f *os.File, size int64) bool { return unix.Fallocate(int(f.Fd()), 0, 0, size) == nil }
