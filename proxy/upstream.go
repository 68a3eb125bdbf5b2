package proxy

import (
	"time"

	"usher/internal/wire"
)

// NewUpstream returns the connections to the billing service, one pool for all local
// ports. cfg says who vouches for the service, how long it may take and how it is
// reached; how many connections are kept is decided here.
func NewUpstream(cfg wire.Config) *wire.Client {
	// There are never more than there were calls at once.
	cfg.MaxIdle = 4096
	// Below the minute after which common load balancers drop a connection.
	cfg.IdleTimeout = 50 * time.Second
	return wire.New(cfg)
}
