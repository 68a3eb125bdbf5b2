package secret

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// shortest is the length from which on a text is a secret. What is shorter is a word.
	shortest = 4
	// notShown stands for a text that has a secret in another form than as it is.
	notShown = "(not shown: it repeats a secret)"
)

// Hide returns a text that somebody else wrote, without these secrets: servers repeat them in their answers.
// If one is in it escaped, or in capital letters, in base64 or in hex, nothing of the text is shown. Call Hide
// with the text that is shown, and cut it afterwards: a part of a secret is not found.
func Hide(text string, secrets ...string) string {
	secrets = slices.DeleteFunc(slices.Clone(secrets), func(s string) bool { return len(strings.TrimSpace(s)) < shortest })
	// Where two begin at the same place, the first one counts.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var exact, forms []string
	for _, s := range secrets {
		exact = append(exact, s, redacted, url.QueryEscape(s), redacted, url.PathEscape(s), redacted)
		// In Basic auth some clients escape the secret as in a form before they use base64.
		for _, form := range slices.Concat(coded(s), coded(url.QueryEscape(s)), []string{s, strings.TrimSpace(s)}) {
			forms = append(forms, folded(form), "")
		}
	}
	shown := strings.NewReplacer(exact...).Replace(text)
	others := strings.NewReplacer(forms...)
	plain := shown
	for range 4 { // as it is, and unescaped up to three times
		if seen := folded(plain); others.Replace(seen) != seen {
			return notShown
		}
		plain = html.UnescapeString(escape.ReplaceAllStringFunc(plain, unescape))
	}
	return shown
}

// folded returns a text in small letters, and with a space for a plus: in a form it is one.
func folded(s string) string { return strings.ToLower(strings.ReplaceAll(s, "+", " ")) }

// coded returns a secret in hex and in base64: how it is spelled there depends on how many bytes stand before it.
func coded(s string) []string {
	if len(s) < 6 { // too short to tell from a word
		return nil
	}
	forms := []string{hex.EncodeToString([]byte(s))}
	for before := range 3 {
		code := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", before) + s))
		code = code[(before*8+5)/6 : (before+len(s))*8/6] // what depends on s alone
		forms = append(forms, code, strings.NewReplacer("+", "-", "/", "_").Replace(code))
	}
	return forms
}

// escape matches the escapes of URLs and JSON.
var escape = regexp.MustCompile(`(?i)%[0-9a-f]{2}|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\["'/\\]`)

func unescape(e string) string {
	digits := strings.TrimLeft(e, `\%uxUX`)
	code, err := strconv.ParseUint(digits, 16, 32)
	switch {
	case err != nil || len(e) == 2:
		return e[1:]
	case len(digits) == 2:
		return string([]byte{byte(code)})
	}
	return string(utf8.AppendRune(nil, rune(code)))
}

// Words returns each secret that these values hold now: one may have several, separated by commas, and each of them
// a name before a colon.
func Words(values []*Value) (all []string) {
	for _, v := range values {
		for word := range strings.SplitSeq(v.Get(), ",") {
			if _, token, named := strings.Cut(word, ":"); named && !strings.HasPrefix(token, "//") {
				word = token
			}
			if word = strings.TrimSpace(word); word != "" {
				all = append(all, word)
			}
		}
	}
	return all
}
