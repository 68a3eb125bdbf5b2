//go:build linux || darwin || freebsd

package sqlite

import "golang.org/x/sys/unix"

// diskSpace returns how much room is left on the disk of a folder, and how large the disk is; zeros: nobody knows.
func diskSpace(dir string) (free, size int64) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, 0
	}
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize)
}
