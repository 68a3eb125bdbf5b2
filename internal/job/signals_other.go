//go:build !unix

package job

import (
	"io"
	"os"
	"os/exec"
)

// passedOn is only Ctrl-C, which Windows sends to every process of the console by itself.
var passedOn = []os.Signal{os.Interrupt}

func signalCode(os.Signal) int { return 128 + 2 }

func fromTerminal(os.Signal) bool { return true }

// WitnessArg is empty: there is no witness here.
const WitnessArg = ""

type witness struct{}

func startWitness(string) *witness { return nil }

func (*witness) saw(sig os.Signal) bool { return fromTerminal(sig) }

func (*witness) stop() {}

// Witness does nothing.
func Witness(io.Reader, io.Writer) {}

func terminate(p *os.Process) { _ = p.Kill() }

func exitCode(cmd *exec.Cmd, _ error) int {
	if cmd.ProcessState == nil {
		return failed
	}
	return cmd.ProcessState.ExitCode()
}
