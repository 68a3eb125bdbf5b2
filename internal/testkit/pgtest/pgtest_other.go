//go:build !unix

package pgtest

import (
	"os"
	"os/user"
	"syscall"
)

// Here a server can't be signalled: USHER_TEST_POSTGRES is the way.
var interrupt, suspend, proceed = os.Kill, os.Interrupt, os.Interrupt

func detached(*user.User) *syscall.SysProcAttr { return nil }
