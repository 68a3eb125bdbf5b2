package proxy

import (
	"context"
	"net/http"

	"usher/internal/guard"
)

// statusGone is logged and counted if the caller hung up before the answer, or if usher cut the call
// off. No caller ever gets it. (nginx uses the same number.)
const statusGone = 499

// cutOff reports whether usher is shutting down and has cut the call off.
func cutOff(r *http.Request) bool { return context.Cause(r.Context()) == guard.ErrCutOff }

// outcome is the ResponseWriter of one call. It remembers what the caller saw.
type outcome struct {
	http.ResponseWriter
	request *http.Request
	caller  callerBody // its ReadCloser is nil if there is no body
	status  int
	problem *problem // of one of usher's own answers; otherwise nil
}

func (o *outcome) WriteHeader(status int) {
	if status < 200 { // the answer is still to come
		if o.request.ProtoAtLeast(1, 1) { // HTTP/1.0 has no 1xx
			o.ResponseWriter.WriteHeader(status)
		}
		return
	}
	if o.status == 0 {
		o.status = status
	}
	h := o.Header()
	// A nil entry: net/http must not guess a type that the service did not send.
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil
	}
	// To keep the connection, net/http would now read a part of the body and discard it. The
	// service would get a body with a hole in it.
	if o.caller.inTransit() {
		h.Set("Connection", "close")
	}
	o.ResponseWriter.WriteHeader(status)
}

// failure returns which of Failures the call is, or nothing.
func (o *outcome) failure() string {
	switch {
	case o.problem != nil && o.problem.status >= 500:
		return o.problem.code
	case o.problem == nil && o.status == http.StatusUnauthorized:
		return "UNAUTHORIZED"
	case o.problem == nil && cutOff(o.request):
		return "CUT_OFF"
	}
	return ""
}

// Unwrap is for http.ResponseController.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }
