package webhookgate

import (
	"context"
	"errors"

	"usher/internal/wire"
)

// Fenced is a context for a Try of which nothing is sent unless may agrees, for each
// piece at the last moment. A process may be stopped for a while at any time, and when it
// goes on it does what it was about to, before anything has told it that another replica
// delivers. What is left is a stop between that last look and the system call. It is for
// a gate with a transport of its own: who puts in another one has to fence it himself.
func Fenced(ctx context.Context, may func() bool) context.Context {
	return wire.With(ctx, wire.Call{Fence: func() error {
		if !may() {
			return errFenced
		}
		return nil
	}})
}

// errFenced is why a piece was not sent. The receiver gets no whole request, and so none.
var errFenced = errors.New("no longer this replica's to deliver")
