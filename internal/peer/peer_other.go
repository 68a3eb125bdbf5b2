//go:build !linux

package peer

import (
	"log/slog"
	"net"
)

// SameUser returns l as it is: here nobody can be asked who is at the other end.
func SameUser(l net.Listener, _ *slog.Logger) (net.Listener, error) { return l, nil }
