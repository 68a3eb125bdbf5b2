package filelock

import (
	"os"

	"golang.org/x/sys/windows"
)

// Take takes the lock, or fails with ErrInUse. It ends with this process.
func Take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	const atOnce = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err = windows.LockFileEx(windows.Handle(f.Fd()), atOnce, 0, 1, 0, new(windows.Overlapped))
	if err != nil {
		f.Close()
		return nil, ErrInUse
	}
	return f, nil
}
