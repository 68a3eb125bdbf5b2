//go:build unix

package pgtest

import (
	"os/user"
	"strconv"
	"syscall"
)

const (
	interrupt = syscall.SIGINT
	suspend   = syscall.SIGSTOP
	proceed   = syscall.SIGCONT
)

// detached is a process with a session of its own, of that user if there is one.
func detached(owner *user.User) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if owner != nil {
		uid, _ := strconv.ParseUint(owner.Uid, 10, 32)
		gid, _ := strconv.ParseUint(owner.Gid, 10, 32)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr
}
