//go:build !unix

package job

import (
	"io"
	"os"
)

// passedOn is only Ctrl-C, which Windows sends to every process of the console by itself.
var passedOn = []os.Signal{os.Interrupt}

// WitnessArg is empty: there is no witness here.
const WitnessArg = ""

type witness struct{}

func startWitness(string) *witness { return nil }

func (*witness) saw(os.Signal) bool { return true }

func (*witness) stop() {}

// Witness does nothing.
func Witness(io.Reader, io.Writer) {}
