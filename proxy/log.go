package proxy

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"usher/internal/text"
)

// The log has the name of a failed call's GraphQL operation and the caller's own ids, so that people
// can find the call. usher logs nothing else that a caller has sent, and these only if they have their
// documented form.

const (
	// maxSearched is the longest body that is searched for the operation's name.
	maxSearched = 256 << 10
	// maxName is the longest name that is logged.
	maxName = 128
)

// log writes a call's line in the log, at info if the call failed, otherwise at debug.
func (h *Handler) log(r *http.Request, out *outcome, took time.Duration, broken bool) {
	level, message := slog.LevelInfo, ""
	switch {
	case out.status == statusGone || broken && r.Context().Err() != nil:
		message = "caller hung up"
		if cutOff(r) {
			message = "call cut off: usher is shutting down"
		}
	case broken:
		message = "the service's answer ended too early"
	case out.problem != nil:
		message = "call failed"
	case out.status >= 500 || out.status == http.StatusUnauthorized:
		message = "service answered with an error"
	default:
		level, message = slog.LevelDebug, "call answered"
	}
	if !h.cfg.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("port", h.cfg.Name), slog.String("method", r.Method), slog.Int("status", out.status),
		slog.Duration("took", took.Round(time.Microsecond)), slog.String("from", r.RemoteAddr),
	}
	if p := out.problem; p != nil {
		attrs = append(attrs, slog.String("code", p.code), slog.String("why", p.message))
		if p.code == "HOST_REFUSED" {
			attrs = append(attrs, slog.String("host", r.Host))
		}
	}
	if level >= slog.LevelInfo {
		attrs = append(attrs, whichCall(r, out)...)
	}
	h.cfg.Log.LogAttrs(r.Context(), level, message, attrs...)
}

// whichCall returns the attributes that identify a failed call.
func whichCall(r *http.Request, out *outcome) (attrs []slog.Attr) {
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	if out.passed { // usher does not parse what strangers send
		add("operation", operation(r, &out.caller.payload))
	}
	add("trace_id", text.TraceID(r.Header))
	add("request_id", requestID(r.Header))
	return attrs
}

// operation returns the name of the call's operation: operationName, or the name of the first
// operation in the query that has one. It is empty if there is none, or if the body was not kept.
func operation(r *http.Request, body *payload) string {
	if body.stream == nil && body.length > 0 {
		return operationIn(body.reader())
	}
	if r.Method == http.MethodGet {
		query := r.URL.Query()
		return named(query.Get("operationName"), query.Get("query"))
	}
	return ""
}

// operationIn finds the operation's name in the JSON of a GraphQL request, or of the first request of
// a batch.
func operationIn(body io.Reader) string {
	from := bufio.NewReader(io.LimitReader(body, maxSearched))
	if first, _ := from.Peek(1); string(first) == "[" {
		_, _ = from.Discard(1)
	}
	var call struct{ OperationName, Query string }
	_ = json.NewDecoder(from).Decode(&call) // a value that is not a string counts as missing
	return named(call.OperationName, call.Query)
}

var (
	nameForm = regexp.MustCompile(`^[_A-Za-z][_0-9A-Za-z]*$`)
	// A string without an end matches up to the document's end, so that nothing is searched twice.
	commentOrString = regexp.MustCompile(`#[^\r\n]*|(?s:"""(?:\\"""|.)*?(?:"""|\z))|"(?:\\.?|[^"\\\r\n])*(?:["\r\n]|\z)`)
	// An operation begins the document, or follows the end of another definition.
	namedOperation = regexp.MustCompile(`(?:^|\})[\s,\x{feff}]*(?:query|mutation|subscription)[\s,]+([_A-Za-z][_0-9A-Za-z]*)[\s,]*[({@]`)
)

// named returns name if it is a GraphQL name, otherwise the name of the first operation in query that has
// one.
func named(name, query string) string {
	if !nameForm.MatchString(name) {
		name = ""
		// Text inside comments and strings may be customers' data.
		if m := namedOperation.FindStringSubmatch(commentOrString.ReplaceAllLiteralString(query, " ")); m != nil {
			name = m[1]
		}
	}
	return name[:min(len(name), maxName)]
}

// requestID returns the caller's X-Request-Id if it is safe to log.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	if len(id) > maxName || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return ""
	}
	return id
}
