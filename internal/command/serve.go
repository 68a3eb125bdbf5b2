package command

import (
	"context"

	"usher/internal/demo"
	"usher/internal/logs"
	"usher/internal/serve"
	"usher/internal/settings"
)

// serveCommand is usher without a command: it serves until a signal stops it.
func serveCommand(ctx context.Context, p Process) int {
	s, err := settings.Read(p.Environ)
	if err != nil {
		return p.failed(err)
	}
	log := logs.New(p.Stderr, &s.Admin, s.Admin.Level)
	return p.ended(serve.Run(ctx, serve.Config{Settings: s, Log: log, Environ: p.Environ, Serves: p.serves}))
}

// demoCommand is usher demo.
func demoCommand(ctx context.Context, p Process) int {
	return p.ended(demo.Run(ctx, demo.Config{Environ: p.Environ, Stdout: p.Stdout, Stderr: p.Stderr, Self: p.Self}))
}
