package command

import (
	"context"
	"fmt"
	"runtime"

	"usher/internal/version"
)

func printVersion(_ context.Context, p Process) int {
	fmt.Fprintf(p.Stdout, "usher %s, commit %s, %s\n", version.Number(), version.Commit(), runtime.Version())
	return exitOK
}
