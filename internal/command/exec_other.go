//go:build !unix

package command

import (
	"os"
	"os/exec"
)

// passedOn: Windows delivers Ctrl-C to every process of the console by itself.
var passedOn = []os.Signal{os.Interrupt}

func signalCode(os.Signal) int { return 128 + 2 }

func fromTerminal(os.Signal) bool { return true }

func terminate(p *os.Process) { _ = p.Kill() }

func exitCode(cmd *exec.Cmd, _ error) int {
	if cmd.ProcessState == nil {
		return exitFailed
	}
	return cmd.ProcessState.ExitCode()
}
