// Usher stands between a customer's software and a subscription billing service.
package main

import (
	"context"
	"os"

	"usher/internal/command"
)

func main() {
	self, _ := os.Executable() // empty where that can't be told
	os.Exit(command.Main(context.Background(), command.Process{
		Args: os.Args[1:], Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Self: self,
	}))
}
