package webhookgate

import (
	"context"
	"errors"

	"usher/internal/wire"
)

// Fenced returns a context for a Try that asks may right before each write, and sends nothing
// if may says no. The hazard: a process can be stopped at any time. When it continues it does
// what it was about to do, before it learns that another replica now delivers. A stop between
// the last look and the system call remains possible. Fenced works with the gate's own
// transport only; another transport has to do this itself.
func Fenced(ctx context.Context, may func() bool) context.Context {
	return wire.With(ctx, wire.Call{Fence: func() error {
		if !may() {
			return errFenced
		}
		return nil
	}})
}

// errFenced is why a write did not happen. The receiver then gets no complete request.
var errFenced = errors.New("no longer this replica's to deliver")
