//go:build unix

package job

import (
	"errors"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that the command gets instead of usher.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

func signalCode(sig os.Signal) int { return 128 + int(sig.(syscall.Signal)) }

// fromTerminal guesses, without a witness, whether the command has got sig already.
func fromTerminal(sig os.Signal) bool {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) }

func exitCode(cmd *exec.Cmd, err error) int {
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal())
		}
		return exit.ExitCode()
	}
	if cmd.ProcessState != nil {
		return cmd.ProcessState.ExitCode() // it ended well; copying its output did not
	}
	return failed
}
