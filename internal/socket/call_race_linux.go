//go:build race

package socket

import "syscall"

// The race detector has to know what a call does to memory, and that what came before a
// write came before the read of it. Only package syscall can tell it.

func read(fd uintptr, p []byte) (int, error)  { return syscall.Read(int(fd), p) }
func write(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
