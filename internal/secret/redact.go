package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Redact returns a text without the secret. Servers repeat secrets in their answers, and rarely as they were
// sent: escaped for HTML, a URL or JSON, also more than once, or in base64. Redact finds all of these; a text
// that has the secret in pieces, or in hex, it hides as a whole. Call it last, with the very text that is
// shown: whatever changes the text afterwards, such as html.UnescapeString, could spell the secret again. (It
// may be cut afterwards, but not before: a cut secret is not found.)
func Redact(text, secret string) string {
	secret = strings.TrimSpace(secret)
	switch {
	case secret == "":
		return text
	case len(text) > maxText:
		return fmt.Sprintf("(%d bytes, not shown)", len(text))
	}
	spelled, mark := spellings(secret), redacted
	if spelled.MatchString(mark) {
		mark = ""
	}
	shown := spelled.ReplaceAllLiteralString(text, mark)
	shown = strings.ReplaceAll(shown, secret, mark) // the pattern does not find half a character
	if spelled.MatchString(shown) || strings.Contains(shown, secret) {
		return mark // the mark and what is around it spell the secret
	}
	if inPieces(shown, secret) {
		return mark
	}
	return shown
}

// inPieces says whether a text has all letters and digits of a secret, of its hex or of its base64, one after
// the other, whatever stands between them: line ends, spaces, dashes.
func inPieces(text, secret string) bool {
	secret = secret[:min(len(secret), maxSpelled)]
	forms := []string{secret, hex.EncodeToString([]byte(secret))}
	for before := range 3 {
		forms = append(forms, base64Core(before, secret))
	}
	letters := onlyLetters(text)
	return slices.ContainsFunc(forms, func(form string) bool {
		form = onlyLetters(form)
		return len(form) >= minLetters && strings.Contains(letters, form)
	})
}

// minLetters is how many letters and digits are too many to be words by chance.
const minLetters = 12

// onlyLetters returns the letters and digits of a text, in lower case.
func onlyLetters(text string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return -1
		}
		return unicode.ToLower(c)
	}, text)
}

// maxText is the largest text that Redact searches, which takes some milliseconds. Of a megabyte it would take
// seconds, and no message for people is as long.
const maxText = 4 << 10

// maxSpelled is how many bytes of a secret spellings looks for. If the secret is longer, its beginning is enough,
// and everything that follows it in the text is removed, too.
const maxSpelled = 128

// spellings returns a pattern that matches every usual spelling of a secret. It may match a bit more: a text that
// shows too little does no harm.
func spellings(secret string) *regexp.Regexp {
	rest := ""
	if len(secret) > maxSpelled {
		end := maxSpelled
		for end > 0 && !utf8.RuneStart(secret[end]) {
			end--
		}
		secret, rest = secret[:end], ".*"
	}
	all := []string{spelling(secret)}
	quoted, _ := json.Marshal(secret) // a string can always be encoded
	query, path := url.QueryEscape(secret), url.PathEscape(secret)
	inJSON := string(quoted[1 : len(quoted)-1])
	forms := []string{secret, query, lowHex(query), path, lowHex(path), html.EscapeString(secret), inJSON}
	slices.Sort(forms)
	for _, form := range slices.Compact(forms) {
		all = append(all, inBase64(form)...)
	}
	return regexp.MustCompile(`(?is)(?:` + strings.Join(all, "|") + `)` + rest)
}

const (
	// escape begins all escapes: %26, &amp; &#38; \u0026 and, escaped twice, %2526, &amp;amp; \u0026amp;
	escape = `[%&\\][0-9a-z#;%&\\{}]*`
	// blank is white space, which is shown as one space, however long it is.
	blank = `(?:[\s\v\p{Z}\x{85}+]|` + escape + `)+`
)

// spelling returns a pattern that matches a text in which each character may be escaped.
func spelling(s string) string {
	var pattern strings.Builder
	last := ' '
	for _, c := range s {
		switch {
		case isBlank(c) && !isBlank(last):
			pattern.WriteString(blank)
		case isBlank(c):
		case c == utf8.RuneError: // not UTF-8: several such bytes may become one character
			fmt.Fprintf(&pattern, `(?:\x{fffd}|%s)+`, escape)
		case c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)):
			fmt.Fprintf(&pattern, `(?:%c|%s(?:%d|%02x)[;}]?)`, c, escape, c, c)
		default: // any escape will do
			fmt.Fprintf(&pattern, `(?:%[1]s|%[2]s(?:%[1]s)?)`, regexp.QuoteMeta(string(c)), escape)
		}
		last = c
	}
	return pattern.String()
}

// isBlank says whether a character may be shown as a space: so is a plus in a form that was decoded once too often.
func isBlank(c rune) bool { return unicode.IsSpace(c) || c == '+' }

// lowHex writes the digits of percent-encoding in lower case, as some servers do.
func lowHex(s string) string { return percent.ReplaceAllStringFunc(s, strings.ToLower) }

var percent = regexp.MustCompile(`%[0-9A-F]{2}`)

// inBase64 returns patterns for a text in base64. How it is spelled depends on what stands before it, such as the
// user name in Basic auth: there are three ways.
func inBase64(s string) (patterns []string) {
	for before := range 3 {
		code := base64Core(before, s)
		if len(code) < 8 {
			continue // too short to tell from a word
		}
		pattern := strings.NewReplacer("+", `(?:[+-]|`+escape+`)`, "/", `(?:[/_]|`+escape+`[/_]?)`).Replace(code)
		patterns = append(patterns, `[0-9a-z+/_-]?`+pattern+`[0-9a-z+/_-]?=*`)
	}
	return patterns
}

// base64Core returns the characters of base64 that depend on s alone, if this many bytes stand before it.
func base64Core(before int, s string) string {
	code := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", before) + s))
	begin, end := (before*8+5)/6, (before+len(s))*8/6
	return code[min(begin, end):end]
}
