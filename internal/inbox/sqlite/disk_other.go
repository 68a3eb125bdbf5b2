//go:build !linux && !darwin && !freebsd

package sqlite

func diskSpace(string) (free, size int64) { return 0, 0 }
