//go:build !windows

package command

import "context"

// supervised serves. Only Windows starts services in a way of its own.
func supervised(ctx context.Context, p *Process) error { return serveCommand(ctx, p) }
