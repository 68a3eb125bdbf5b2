package proxy

import (
	"time"

	"usher/internal/wire"
)

// NewUpstream returns the connections to the billing service, one pool for all local ports.
// cfg has the trusted roots, the timeout and the proxy. NewUpstream decides how many
// connections are kept.
func NewUpstream(cfg wire.Config) *wire.Client {
	// There are never more than there were concurrent calls.
	cfg.MaxIdle = 4096
	// Shorter than the minute after which common load balancers drop a connection.
	cfg.IdleTimeout = 50 * time.Second
	return wire.New(cfg)
}
