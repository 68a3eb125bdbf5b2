package proxy

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"usher/internal/text"
)

// What the log says about a failed call, so that somebody can find it: the name of its
// GraphQL operation, and the caller's own ids. Nothing else of a call is ever logged, and
// these only if they have their documented form.

const (
	// maxSearched is how much of a body is searched for a name.
	maxSearched = 256 << 10
	// maxName is the longest name that is logged: others choose them.
	maxName = 128
)

// log writes the one line of a call: at info if it failed.
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

// whichCall returns what identifies a failed call, as far as the caller said.
func whichCall(r *http.Request, out *outcome) (attrs []slog.Attr) {
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	if out.passed { // usher does not look into what strangers send
		add("operation", operation(r, &out.caller.payload))
	}
	add("trace_id", text.TraceID(r.Header))
	add("request_id", requestID(r.Header))
	return attrs
}

// operation returns the name of the call's operation: operationName, or the name of the
// query's first operation. It is empty if there is none, or the body was not kept.
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

// operationIn finds the name in a GraphQL request in JSON, or in the first of several. It reads
// only as far as it has to.
func operationIn(body io.Reader) string {
	d := json.NewDecoder(io.LimitReader(body, maxSearched))
	open, err := d.Token()
	if open == json.Delim('[') {
		open, err = d.Token()
	}
	if err != nil || open != json.Delim('{') {
		return ""
	}
	var name, query string
	for name == "" && d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			break
		}
		switch key { // what is not a string is none
		case "operationName":
			_ = json.Unmarshal(value, &name)
		case "query":
			_ = json.Unmarshal(value, &query)
		}
	}
	return named(name, query)
}

var (
	nameForm = regexp.MustCompile(`^[_A-Za-z][_0-9A-Za-z]*$`)
	// graphQL finds what matters in a document: comments, strings, words and brackets. A string
	// without an end goes to the end: so nothing is searched twice.
	graphQL = regexp.MustCompile(`#[^\r\n]*|(?s:"""(?:\\"""|.)*?(?:"""|\z))|"(?:\\.?|[^"\\\r\n])*(?:["\r\n]|\z)|[\w\x{80}-\x{fefe}\x{ff00}-\x{10ffff}]+|[](){}[]`)
)

// named returns name if it is a GraphQL name, otherwise that of the query's first operation.
func named(name, query string) string {
	if !nameForm.MatchString(name) {
		name = firstOperation(query)
	}
	return name[:min(len(name), maxName)]
}

// firstOperation returns the name of the first operation in a GraphQL document; empty if it
// has none. Fragments may come before it.
func firstOperation(document string) string {
	depth, before := 0, "" // the word before, if it matters: it says what a definition is
	for rest := document; ; {
		at := graphQL.FindStringIndex(rest)
		if at == nil {
			return ""
		}
		word := rest[at[0]:at[1]]
		rest = rest[at[1]:]
		switch word[0] {
		case '#', '"':
			continue
		case '{', '(', '[':
			if before != "fragment" { // an operation without a name, or not GraphQL
				return ""
			}
			depth++
			continue
		case '}', ')', ']':
			if depth--; depth <= 0 && word == "}" {
				before = ""
			}
			continue
		}
		switch before {
		case "query", "mutation", "subscription":
			if nameForm.MatchString(word) {
				return word
			}
			return ""
		case "":
			before = word
		}
	}
}

// requestID returns the caller's X-Request-Id if it is safe to log.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	if len(id) > maxName || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return ""
	}
	return id
}
