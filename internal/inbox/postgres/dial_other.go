//go:build !linux

package postgres

import "syscall"

// userTimeout exists on Linux only; elsewhere keep-alives find a server that is gone.
func userTimeout(_, _ string, _ syscall.RawConn) error { return nil }
