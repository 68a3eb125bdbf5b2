//go:build !linux

package postgres

import "syscall"

// userTimeout does nothing: the option exists on Linux only. Elsewhere keep-alives find a server that is gone.
func userTimeout(_, _ string, _ syscall.RawConn) error { return nil }
