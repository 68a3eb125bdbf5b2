package changes

import (
	"strings"
	"unicode"
)

// maxShown is how many characters of a foreign text are shown.
const maxShown = 80

// text is a foreign text. It is compared unchanged. It prints short, on one line, and without control
// characters for a terminal.
type text string

func (t text) String() string {
	var b strings.Builder
	n := 0
	for _, c := range string(t) {
		if n++; n > maxShown {
			b.WriteRune('…')
			break
		}
		if !unicode.IsPrint(c) {
			c = unicode.ReplacementChar
		}
		b.WriteRune(c)
	}
	return b.String()
}
