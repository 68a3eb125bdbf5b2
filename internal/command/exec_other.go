//go:build !unix

package command

import (
	"os"
	"os/exec"
)

// passedOn is only Ctrl-C, which Windows sends to every process of the console by itself.
var passedOn = []os.Signal{os.Interrupt}

func signalCode(os.Signal) int { return 128 + 2 }

func fromTerminal(os.Signal) bool { return true }

// witnessArg is empty: there is no witness here.
const witnessArg = ""

type witness struct{}

func startWitness(string) *witness { return nil }

func (*witness) saw(sig os.Signal) bool { return fromTerminal(sig) }

func (*witness) stop() {}

func beWitness(Process) int { return exitUsage }

func terminate(p *os.Process) { _ = p.Kill() }

func exitCode(cmd *exec.Cmd, _ error) int {
	if cmd.ProcessState == nil {
		return exitFailed
	}
	return cmd.ProcessState.ExitCode()
}
