package secret

import (
	"regexp"
	"strings"
)

// quoted is what %q makes, or the beginning of it where it was cut off.
var quoted = regexp.MustCompile(`"(?:\\.|[^"\\])*(?:"|$)`)

// Unquoted returns the text of an error, or what a library prints, without what it quotes
// from the wire: net/http shows the bytes of an answer that it can't read, and they may
// be customers' data, or a token.
func Unquoted(text string) string {
	// This one quotes without quotation marks.
	if before, _, found := strings.Cut(text, malformed); found {
		text = before + malformed
	}
	return quoted.ReplaceAllLiteralString(text, `"…"`)
}

const malformed = "malformed MIME header"
