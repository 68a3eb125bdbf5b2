package entitlements

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	codeNotReady      = "NOT_READY"
	codeMethodRefused = "METHOD_REFUSED"
	codeKeyRequired   = "KEY_REQUIRED"
)

// A problem is any answer except a yes or the requested data.
type problem struct {
	status     int
	code       string
	ofrep      string // its code in OFREP; empty: GENERAL
	message    string
	retryAfter time.Duration // zero: no Retry-After
	allow      string        // the allowed methods; empty: no Allow header
	close      bool          // the connection cannot be used for another call
}

func (p *problem) Error() string { return p.message }

var errFeaturesUnknown = errors.New("the last webhook of this tenant has no list of features")

// problemOf turns errors into answers. This is the only table that does. An unknown error is
// NOT_READY: a store that fails must never become a "no".
func problemOf(err error) *problem {
	var (
		made      *problem
		ambiguous *AmbiguousError
		notReady  *NotReadyError
	)
	switch {
	case errors.As(err, &made):
		return made
	case errors.Is(err, ErrUnknown):
		return &problem{status: http.StatusNotFound, code: "TENANT_UNKNOWN", ofrep: "FLAG_NOT_FOUND",
			message: "Unknown tenant: " + err.Error() + "."}
	case errors.Is(err, errFeaturesUnknown):
		return &problem{status: http.StatusNotFound, code: "FEATURES_UNKNOWN", ofrep: "FLAG_NOT_FOUND",
			message: "Unknown features: " + err.Error() + "."}
	case errors.As(err, &ambiguous):
		return &problem{status: http.StatusConflict, code: "AMBIGUOUS", ofrep: "INVALID_CONTEXT",
			message: fmt.Sprintf("Ambiguous: %v.", err)}
	case errors.As(err, &notReady):
		return &problem{status: http.StatusServiceUnavailable, code: codeNotReady,
			message: "Not ready: " + notReady.Why + ".", retryAfter: max(notReady.RetryAfter, time.Second)}
	default: // its text is for the log only: it may contain names of files and servers
		return &problem{status: http.StatusServiceUnavailable, code: codeNotReady,
			message: "Not ready: the inbox cannot be read.", retryAfter: time.Second}
	}
}

func badRequest(message string) error {
	return &problem{status: http.StatusBadRequest, code: "BAD_REQUEST", message: message}
}

// denied is a no.
func denied(message string) error {
	return &problem{status: http.StatusForbidden, code: "DENIED", message: message}
}

type (
	errorBody struct {
		Error errorDetail `json:"error"`
	}
	errorDetail struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
)

func (p *problem) write(w http.ResponseWriter, to target) {
	h := w.Header()
	if p.retryAfter > 0 {
		h.Set("Retry-After", seconds(p.retryAfter))
	}
	if p.allow != "" {
		h.Set("Allow", p.allow)
	}
	if p.close {
		h.Set("Connection", "close")
	}
	// nginx would pass it on, and the visitor's browser would ask for usher's key.
	if p.code == codeKeyRequired && to.page != checkPage {
		h.Set("WWW-Authenticate", `Bearer realm="usher"`)
	}
	if to.ofrep {
		write(w, p.flagStatus(), p.flagBody(to))
		return
	}
	write(w, p.status, errorBody{errorDetail{p.code, p.message}})
}
