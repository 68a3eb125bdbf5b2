//go:build !unix

package job

import (
	"io"
	"os"
)

// forwardedSignals has only Ctrl-C, which Windows itself sends to every process of the console.
var forwardedSignals = []os.Signal{os.Interrupt}

// WitnessArg is empty: there is no witness here.
const WitnessArg = ""

type witness struct{}

func startWitness(string) *witness { return nil }

func (*witness) sawSignal(os.Signal) bool { return true }

func (*witness) pid() int { return 0 }

func (*witness) stop() {}

// Witness does nothing.
func Witness(io.Reader, io.Writer) {}
