package trace

import (
	"net/http"
	"strings"
	"testing"
)

func TestID(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for header, want := range map[string]string{
		"00-" + id + "-00f067aa0ba902b7-01":                      id,
		"00-" + id + "-00f067aa0ba902b7-00":                      id,
		"cc-" + id + "-00f067aa0ba902b7-01-what-the-future-has":  id,
		"00-" + id + "-00f067aa0ba902b7-01-more":                 "",
		"ff-" + id + "-00f067aa0ba902b7-01":                      "",
		"00-" + strings.ToUpper(id) + "-00f067aa0ba902b7-01":     "",
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01": "",
		"00-" + id + "-0000000000000000-01":                      "",
		"00-" + id[:31] + "-00f067aa0ba902b7-01":                 "",
		"00-" + id[:31] + "\n-00f067aa0ba902b7-01":               "",
		"00-" + id: "",
		id:         "",
		"":         "",
		"---":      "",
	} {
		if got := ID(http.Header{"Traceparent": {header}}); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
	if got := ID(nil); got != "" {
		t.Errorf("without: %q", got)
	}
	twice := "00-" + id + "-00f067aa0ba902b7-01"
	if got := ID(http.Header{"Traceparent": {twice, twice}}); got != "" {
		t.Errorf("twice: %q", got)
	}
}
