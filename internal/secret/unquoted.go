package secret

import (
	"regexp"
	"strings"
)

// quoted matches what %q writes, also if its end was cut off.
var quoted = regexp.MustCompile(`"(?:\\.|[^"\\])*(?:"|$)`)

// Unquoted returns the text of an error, or of a library's log line, without what it quotes.
// net/http quotes the bytes of an answer that it cannot read, and these may be customers' data
// or a token.
func Unquoted(text string) string {
	// This one quotes without quotation marks.
	if before, _, found := strings.Cut(text, malformed); found {
		text = before + malformed
	}
	return quoted.ReplaceAllLiteralString(text, `"…"`)
}

const malformed = "malformed MIME header"
