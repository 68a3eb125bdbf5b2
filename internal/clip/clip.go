// Package clip shortens foreign text before it is logged, shown or remembered.
package clip

import (
	"strings"
	"unicode/utf8"
)

// Text returns s, cut off after n bytes at most: whole characters, valid UTF-8. What is cut off
// ends in "…", and does not keep s in memory.
func Text(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "\uFFFD") + "…"
}
