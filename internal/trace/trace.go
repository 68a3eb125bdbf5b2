// Package trace reads the traceparent header, which says what a request is part of, so that a
// line in usher's log can be found together with those of other programs.
package trace

import (
	"net/http"
	"strings"
)

// ID returns the trace id of a traceparent header (W3C Trace Context, section 3.2). It returns
// nothing if there is none, more than one, or an invalid one. It is foreign text that goes into
// the log, so it is 32 hex digits or nothing.
func ID(h http.Header) string {
	values := h.Values("Traceparent")
	if len(values) != 1 {
		return ""
	}
	// version "-" trace-id "-" parent-id "-" flags; later versions may have more.
	parts := strings.Split(values[0], "-")
	if len(parts) < 4 || parts[0] == "00" && len(parts) != 4 || parts[0] == "ff" {
		return ""
	}
	for i, digits := range []int{2, 32, 16, 2} {
		if len(parts[i]) != digits || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return ""
		}
	}
	if strings.Trim(parts[1], "0") == "" || strings.Trim(parts[2], "0") == "" {
		return ""
	}
	return parts[1]
}
