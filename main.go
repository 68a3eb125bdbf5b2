// Usher stands between a customer's software and a subscription billing service.
package main

import (
	"context"
	"os"

	"usher/internal/command"
)

func main() {
	self, _ := os.Executable() // empty if the system cannot tell
	os.Exit(command.Main(context.Background(), command.Process{
		Called:  os.Args[0],
		Args:    os.Args[1:],
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Self:    self,
	}))
}
