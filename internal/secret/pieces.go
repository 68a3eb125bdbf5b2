package secret

import (
	"encoding/hex"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MinPiece is how many characters in a row are a piece of a secret, and not a word by chance.
const MinPiece = 8

// RedactPieces returns a text without any piece of hidden, in lower or upper case: MinPiece of its characters
// in a row or, if it is shorter, all of it. It finds them escaped for HTML, a URL or JSON, up to three times
// over, and pieces also in base64 and in hex.
func RedactPieces(text string, hidden ...string) string {
	pieces := make(pieces)
	for _, h := range hidden {
		for range maxEscapes {
			pieces.add(h)
			if len(h) >= MinPiece {
				for before := range 3 {
					pieces.add(base64Core(before, h))
				}
				pieces.add(hex.EncodeToString([]byte(h)))
			}
			h = join(unescape(split(h)))
		}
	}
	marked := make([]bool, len(text))
	seen := split(text)
	for range maxEscapes {
		lower := lowered(join(seen))
		for length := range pieces {
			for i := 0; i+length <= len(lower); i++ {
				if pieces[length][lower[i:i+length]] {
					for at := seen[i].from; at < seen[i+length-1].to; at++ {
						marked[at] = true
					}
				}
			}
		}
		seen = unescape(seen)
	}
	var shown strings.Builder
	for i := range marked {
		switch {
		case !marked[i]:
			shown.WriteByte(text[i])
		case i == 0 || !marked[i-1]:
			shown.WriteString(redacted)
		}
	}
	return strings.ToValidUTF8(shown.String(), "\uFFFD") // a piece may end within a character
}

// maxEscapes is how often a text is unescaped.
const maxEscapes = 4

// pieces are what is searched for, in lower case, by its length.
type pieces map[int]map[string]bool

func (p pieces) add(text string) {
	text = lowered(text)
	length := min(len(text), MinPiece)
	for i := 0; length > 0 && i+length <= len(text); i++ {
		if p[length] == nil {
			p[length] = make(map[string]bool)
		}
		p[length][text[i:i+length]] = true
	}
}

// lowered returns a text with its ASCII letters in lower case. It stays as long as it was.
func lowered(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// letter is a byte of a text that was unescaped, and where it comes from.
type letter struct {
	is       byte
	from, to int
}

func split(text string) []letter {
	all := make([]letter, len(text))
	for i := range all {
		all[i] = letter{text[i], i, i + 1}
	}
	return all
}

func join(all []letter) string {
	text := make([]byte, len(all))
	for i := range all {
		text[i] = all[i].is
	}
	return string(text)
}

// unescape replaces each escape once: %2F, &#47; &amp; \/ \u002f \x2f and, as in a form, a plus by a space.
func unescape(all []letter) []letter {
	text := join(all)
	out := make([]letter, 0, len(all))
	for i := 0; i < len(text); {
		means, length := escapeAt(text[i:])
		if length == 0 {
			out = append(out, all[i])
			i++
			continue
		}
		for n := range len(means) {
			out = append(out, letter{means[n], all[i].from, all[i+length-1].to})
		}
		i += length
	}
	return out
}

// escapeAt returns what the escape means with which a text begins, and how long it is; zero: it begins with none.
func escapeAt(s string) (means string, length int) {
	switch {
	case s[0] == '+':
		return " ", 1
	case s[0] == '%' && len(s) >= 3:
		if c, err := url.PathUnescape(s[:3]); err == nil {
			return c, 3
		}
	case s[0] == '&':
		if end := strings.IndexByte(s[:min(len(s), 12)], ';'); end > 0 {
			if c := html.UnescapeString(s[:end+1]); c != s[:end+1] {
				return c, end + 1
			}
		}
	case s[0] == '\\' && len(s) >= 2:
		digits := map[byte]int{'u': 4, 'x': 2, 'U': 8}[s[1]]
		n, err := strconv.ParseUint(s[2:min(len(s), 2+digits)], 16, 32)
		if err == nil && len(s) >= 2+digits && digits > 0 {
			if digits == 2 {
				return string([]byte{byte(n)}), 4
			}
			return string(utf8.AppendRune(nil, rune(n))), 2 + digits
		}
		if slices.Contains([]byte(`\/"'`), s[1]) {
			return s[1:2], 2
		}
	}
	return "", 0
}
