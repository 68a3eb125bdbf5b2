package proxy

import (
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"usher/internal/guard"
	"usher/internal/wire"
	"usher/tokens"
)

// Config is what a local port needs to know.
type Config struct {
	Name   string         // in logs
	Target *url.URL       // of the service's /graphql
	Source *tokens.Source // provides the tokens
	Hosts  *guard.Hosts   // the Host headers that are answered
	Log    *slog.Logger   // gets a line for every failed call, at info or above

	// Upstream carries the calls.
	Upstream interface {
		Do(*http.Request, wire.Call) (*http.Response, error)
	}

	// ReplayLimit is the largest request body that is kept for a second try after a 401. A larger one streams, and is
	// sent once. ReplayMemory limits the memory of the kept bodies of all ports together.
	ReplayLimit  int64
	ReplayMemory *Memory

	// Key returns the key that callers must send, or several separated by commas. Nil: no key
	// is required. A func that returns the empty string lets no caller in.
	Key func() string

	// Started is called when a call begins, Finished when it has ended, with the status that the
	// caller saw, and Replayed for each second try after a 401.
	Started  func()
	Finished func(status int, took time.Duration)
	Replayed func()
	// Failed is called for each call that failed because of usher or of the way to the service, with one
	// of Failures. May be nil.
	Failed func(reason string)
}

// Failures are the reasons that Config.Failed is called with: the codes of usher's own 5xx answers,
// UNAUTHORIZED for a 401 of the service that a new token did not help against, and CUT_OFF for a call
// that took longer than usher's shutdown.
var Failures = [...]string{
	tokenRejected, tokenUnavailable, upstreamUnreachable, upstreamTimeout, "UNAUTHORIZED", "CUT_OFF",
}
