package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"usher/internal/guard"
	"usher/internal/wire"
	"usher/tokens"
)

// problem is one of usher's own answers. It is written as a GraphQL response, or as an OAuth error.
type problem struct {
	status     int
	code       string
	message    string
	reason     string        // the error code of the token endpoint; empty: none
	retryAfter time.Duration // zero: no Retry-After
	close      bool          // the connection must not be used for another call
	oauth      bool          // it is the answer of a token endpoint
}

// The codes of usher's own 5xx answers.
const (
	tokenRejected       = "TOKEN_REJECTED"
	tokenUnavailable    = "TOKEN_UNAVAILABLE"
	upstreamUnreachable = "UPSTREAM_UNREACHABLE"
	upstreamTimeout     = "UPSTREAM_TIMEOUT"
)

// problemOf turns an error into an answer. No other code does.
func problemOf(err error) *problem {
	var (
		body      *bodyError
		noToken   *tokens.NoTokenError
		rejected  *tokens.RejectedError
		unreached *wire.DialError
		timeout   net.Error
	)
	switch {
	// This case is the first, because a caller's broken body also breaks the connection to the
	// service, and that is not the service's fault.
	case errors.As(err, &body):
		return &problem{status: http.StatusBadRequest, code: "BAD_REQUEST", close: true,
			message: "the request's body could not be read: " + body.Error()}
	case errors.As(err, &rejected) && errors.As(err, &noToken):
		return &problem{status: http.StatusBadGateway, code: tokenRejected,
			message: err.Error(), reason: rejected.Code, retryAfter: noToken.RetryAfter}
	case errors.As(err, &noToken):
		return &problem{status: http.StatusServiceUnavailable, code: tokenUnavailable,
			message: err.Error(), retryAfter: max(noToken.RetryAfter, time.Second)}
	case errors.As(err, &unreached):
		return &problem{status: http.StatusBadGateway, code: upstreamUnreachable,
			message: fmt.Sprintf("the billing service can't be reached: %v", err)}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &problem{status: http.StatusGatewayTimeout, code: upstreamTimeout,
			message: fmt.Sprintf("the billing service did not answer in time: %v", err)}
	default:
		return &problem{status: http.StatusBadGateway, code: upstreamUnreachable,
			message: fmt.Sprintf("the answer of the billing service cannot be used: %v", err)}
	}
}

// response is a GraphQL response.
type response struct {
	Errors []responseError `json:"errors"`
}

type responseError struct {
	Message    string `json:"message"`
	Extensions struct {
		Code   string `json:"code"`
		Reason string `json:"reason,omitempty"`
	} `json:"extensions"`
}

func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if p.retryAfter > 0 {
		h.Set("Retry-After", guard.Seconds(p.retryAfter))
	}
	if p.status == http.StatusUnauthorized {
		// Some clients send a password only if they are asked for one.
		h["Www-Authenticate"] = []string{`Bearer realm="usher"`, `Basic realm="usher"`}
	}
	if p.close {
		h.Set("Connection", "close")
	}
	if p.oauth {
		guard.WriteJSON(w, p.status, map[string]string{"error": p.code, "error_description": p.message})
		return
	}
	e := responseError{Message: p.message}
	e.Extensions.Code, e.Extensions.Reason = p.code, p.reason
	guard.WriteJSON(w, p.status, response{[]responseError{e}})
}
