package command

import (
	"context"
	"strings"

	"usher/internal/job"
)

// execute is usher exec: it runs a command, and a local port for it.
func execute(ctx context.Context, p Process, args []string) int {
	switch {
	case len(args) == 0:
	case args[0] == "--":
		args = args[1:]
	case len(args) == 1 && args[0] == job.WitnessArg && job.WitnessArg != "":
		job.Witness(p.Stdin, p.Stdout)
		return exitOK
	case isHelp(args[0]):
		return p.helpOn("exec")
	case strings.HasPrefix(args[0], "-"):
		return p.misused("usher exec takes no option %q: write usher exec -- CMD ARG...", args[0])
	}
	if len(args) == 0 {
		return p.misused("usher exec needs a command: usher exec -- CMD ARG...")
	}
	j := job.Job{Args: args, Environ: p.Environ, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Self: p.Self}
	code, err := j.Run(ctx)
	if err != nil {
		return max(code, p.failed(err)) // bad settings are 2; a command that cannot run has a code of its own
	}
	return code
}
