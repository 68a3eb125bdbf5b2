// Package text prepares text that others wrote before usher logs it or shows it, and what usher itself prints.
package text

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// Clip returns at most the first n bytes of s, followed by "…" if that is not all. The result is
// valid UTF-8 and does not end inside a character. If s was cut, the result does not keep s in memory.
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
	count, end := 0, 0
	for i := range s {
		if count++; count == n {
			end = i
		}
		if count > n {
			return strings.TrimRight(s[:end], " ") + "…"
		}
	}
	return s
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns how many columns the terminal w has, or 0 if w is not a terminal.
func Width(w io.Writer) int {
	if !IsTerminal(w) {
		return 0
	}
	if n, _, err := term.GetSize(int(w.(*os.File).Fd())); err == nil && n > 0 {
		return n
	}
	return 80
}

// Visible replaces characters that cannot be seen by their escapes in JSON, such as \u001b. So no
// text that came with a webhook, or that an error quotes, can control a terminal or break a line.
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

// plainWord matches words that every shell reads as they are.
var plainWord = regexp.MustCompile(`^[\w./][\w./:,+@%-]*$`)

// inQuotes writes a word for the inside of single quotes. For fish a backslash is an escape there, too, so it
// stands in double quotes.
var inQuotes = strings.NewReplacer(`'`, `'"'"'`, `\`, `'"\\"'`)

// Quote returns a word as part of a command line that people copy into a shell: senders choose the codes of tenants,
// which may hold a command of their own. It does not hide characters that cannot be seen: see Visible.
func Quote(word string) string {
	if plainWord.MatchString(filepath.ToSlash(word)) { // the backslash of a path on Windows, too
		return word
	}
	return "'" + inQuotes.Replace(word) + "'"
}

// quoted matches what %q writes, also if its end was cut off.
var quoted = regexp.MustCompile(`"(?:\\.|[^"\\])*(?:"|$)`)

// Unquoted removes the quotations from the text of an error or of a library's log line. net/http
// quotes the bytes of an answer that it cannot read, and these may be customers' data or a token.
func Unquoted(text string) string {
	// textproto quotes the header after these words, without quotation marks.
	if before, _, found := strings.Cut(text, malformed); found {
		text = before + malformed
	}
	return quoted.ReplaceAllLiteralString(text, `"…"`)
}

const malformed = "malformed MIME header"

// traceparent matches version "-" trace-id "-" parent-id "-" flags. Later versions may add fields.
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?$`)

// TraceID returns the trace id of the traceparent header (W3C Trace Context, section 3.2): 32 hex digits, or an empty
// string. With it in the log, people find usher's lines beside those of other programs.
func TraceID(h http.Header) string {
	if m := traceparent.FindStringSubmatch(h.Get("Traceparent")); m != nil {
		return m[1]
	}
	return ""
}

// markup matches everything in an HTML page that is not its text.
var markup = regexp.MustCompile(`(?is)<!--.*?(-->|$)|<(script|style|head)\b.*?(</(script|style|head)>|$)|<[/!a-z][^>]*(>|$)`)

// Plain returns an answer as one line. Of an HTML page, such as a web server's error page, it
// returns the text.
func Plain(s string) string {
	if strings.HasPrefix(strings.TrimSpace(s), "<") {
		s = html.UnescapeString(markup.ReplaceAllString(s, " "))
	}
	return strings.Join(strings.Fields(s), " ")
}

// Readable makes one line of plain text, of that many bytes at most, from what others have sent: it may have
// escape sequences for a terminal, or turn the direction of the text around.
func Readable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsGraphic(r):
			return r
		}
		return -1
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[:min(len(s), most)], "") // it may end within a character
}

// WithinEdits reports whether a becomes b if at most so many letters are added, removed, replaced or swapped
// with their neighbour.
func WithinEdits(a, b string, edits int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if a == "" || b == "" || edits == 0 {
		return len(a)+len(b) <= edits
	}
	swapped := len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0]
	return WithinEdits(a[1:], b, edits-1) || WithinEdits(a, b[1:], edits-1) || WithinEdits(a[1:], b[1:], edits-1) ||
		swapped && WithinEdits(a[2:], b[2:], edits-1)
}

// Once returns these texts in their order, each once.
func Once(all []string) (once []string) {
	seen := make(map[string]bool, len(all))
	for _, s := range all {
		if !seen[s] {
			once = append(once, s)
		}
		seen[s] = true
	}
	return once
}

// Wrap breaks a text into lines of up to 80 columns that begin with indent.
func Wrap(indent, text string) string {
	var lines []string
	line := indent
	for word := range strings.FieldsSeq(text) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > 80 && line != indent {
			lines = append(lines, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}
