// Package terminal is about writing to a person's screen.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"
)

// Is says whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Visible writes what cannot be seen as JSON does (\u001b), so that nothing that came with
// a webhook, or that an error quotes, can steer a terminal or make one line two.
func Visible(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd") // some terminals act on single bytes, such as 0x9b
	if strings.IndexFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) < 0 {
		return s
	}
	var out strings.Builder
	for _, c := range s {
		switch {
		case unicode.IsPrint(c):
			out.WriteRune(c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, c)
		}
	}
	return out.String()
}
