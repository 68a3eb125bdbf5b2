package proxy

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"usher/internal/text"
)

// maxID is the longest id of a caller's own that is logged.
const maxID = 128

// log writes a call's line in the log, at info if the call failed, otherwise at debug. Of what a caller has sent
// it logs only the ids that people find the call by, and these only if they have their documented form.
func (c *Config) log(r *http.Request, out *outcome, took time.Duration, broken bool) {
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
	if !c.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("port", c.Name), slog.String("method", r.Method), slog.Int("status", out.status),
		slog.Duration("took", took.Round(time.Microsecond)), slog.String("from", r.RemoteAddr),
	}
	if p := out.problem; p != nil {
		attrs = append(attrs, slog.String("code", p.code), slog.String("why", p.message))
		if p.code == "HOST_REFUSED" {
			attrs = append(attrs, slog.String("host", r.Host))
		}
	}
	if level >= slog.LevelInfo {
		if id := text.TraceID(r.Header); id != "" {
			attrs = append(attrs, slog.String("trace_id", id))
		}
		if id := requestID(r.Header); id != "" {
			attrs = append(attrs, slog.String("request_id", id))
		}
	}
	c.Log.LogAttrs(r.Context(), level, message, attrs...)
}

// requestID returns the caller's X-Request-Id if it is safe to log.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	if len(id) > maxID || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return ""
	}
	return id
}
