//go:build !windows

package command

import "context"

// serveCommand serves. Only Windows starts services in a special way.
func serveCommand(ctx context.Context, p *Process) error { return runUntilStopped(ctx, p) }
