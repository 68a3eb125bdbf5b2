//go:build !unix

package job

import "os"

// forwardedSignals has only Ctrl-C, which Windows itself sends to every process of the console.
var forwardedSignals = []os.Signal{os.Interrupt}

func fromTerminal(os.Signal) bool { return true }
