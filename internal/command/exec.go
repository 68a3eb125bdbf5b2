package command

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"usher/internal/job"
	"usher/internal/logs"
	"usher/internal/settings"
)

// execCommand is 'usher exec': it runs a command of the user's, which calls the service through a local
// port of its own.
func execCommand(ctx context.Context, p *Process, args []string) error {
	switch {
	case len(args) == 0:
	case args[0] == "--":
		args = args[1:]
	case strings.HasPrefix(args[0], "-"):
		return usageErrorf("takes no option %q: write -- before the command, as in: usher exec -- ./report.sh", args[0])
	}
	if len(args) == 0 {
		return usageErrorf("needs a command, as in: usher exec -- ./report.sh")
	}
	j := newJob(p, args)
	if err := readOutbound(p, j); err != nil {
		return err
	}
	code, err := j.Run(ctx)
	if err != nil {
		fmt.Fprintln(p.Stderr, "usher:", err)
		code = max(code, exitFailed) // 126 or 127 if the command cannot be started
	}
	return exitCode(code)
}

func newJob(p *Process, args []string) *job.Job {
	return &job.Job{Args: args, Environ: p.Environ, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr}
}

// readOutbound reads the settings of a job that calls the service.
func readOutbound(p *Process, j *job.Job) error {
	s, err := settings.ReadOutbound(p.Environ)
	if err != nil {
		return err
	}
	if settings.Environment(p.Environ)["USHER_LOG_LEVEL"] == "" {
		s.Admin.Level = slog.LevelWarn // the command writes to the same standard error
	}
	s.Outbound.Log = logs.New(p.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level)
	j.Outbound, j.Watched = s.Outbound.Config, s.Watched
	return nil
}
