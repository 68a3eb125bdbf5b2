// Package text is about text that came from elsewhere: cut short, made visible and without what it
// quotes before it is logged or shown, and the trace id that a request carries.
package text

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// Clip returns s, cut off after n bytes at most: whole characters, valid UTF-8. What is cut off
// ends in "…", and does not keep s in memory.
func Clip(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "\uFFFD") + "…"
}

// Shorten returns s with n characters at most. If it cuts s, the last of them is "…".
func Shorten(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return strings.TrimRight(string(runes[:max(n, 3)-1]), " ") + "…"
}

// IsTerminal says whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width is how many columns the terminal w has; 0: it is none.
func Width(w io.Writer) int {
	if !IsTerminal(w) {
		return 0
	}
	if n, _, err := term.GetSize(int(w.(*os.File).Fd())); err == nil && n > 0 {
		return n
	}
	return 80
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
		if unicode.IsPrint(c) {
			out.WriteRune(c)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, c) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

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

// traceparent is version "-" trace-id "-" parent-id "-" flags; later versions may have more.
var traceparent = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$`)

// TraceID returns the trace id of a traceparent header (W3C Trace Context, section 3.2), so that a
// line in the log can be found together with those of other programs. It returns nothing if there
// is none, more than one, or an invalid one: foreign text that goes into the log is 32 hex digits
// or nothing.
func TraceID(h http.Header) string {
	values := h.Values("Traceparent")
	if len(values) != 1 {
		return ""
	}
	m := traceparent.FindStringSubmatch(values[0])
	if m == nil || m[1] == "ff" || m[1] == "00" && m[4] != "" || strings.Trim(m[2], "0") == "" || strings.Trim(m[3], "0") == "" {
		return ""
	}
	return m[2]
}

// markup is what an error page has besides its text.
var markup = regexp.MustCompile(`(?is)<!--.*?(-->|$)|<(script|style|head)\b.*?(</(script|style|head)>|$)|<[/!a-z][^>]*(>|$)`)

// Plain is an answer on one line, and of an HTML page its text.
func Plain(s string) string {
	if strings.HasPrefix(strings.TrimSpace(s), "<") {
		s = html.UnescapeString(markup.ReplaceAllString(s, " "))
	}
	return strings.Join(strings.Fields(s), " ")
}
