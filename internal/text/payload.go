package text

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

const (
	// MaxPayload is how many bytes of a webhook's payload people see. Senders choose how large it is,
	// and which shape it has.
	MaxPayload = 256 << 10

	// maxIndent is how deep a payload is indented. What is deeper stays on one line: in a body of 70 KB that is
	// 9,900 deep, each line would begin with 20 KB of spaces.
	maxIndent = 16

	// maxDepth is how deep a payload may be that programs get as JSON. The gate accepts no deeper one, and many
	// parsers give up soon after.
	maxDepth = 64
)

// Payload returns a payload as people read it, and how many bytes of it are left out. JSON is indented; of anything
// else the bytes become valid UTF-8. It uses no more memory than that takes, whatever the shape of the payload is.
func Payload(body []byte) (shown string, left int) {
	if isJSON(body) {
		return indent(body)
	}
	n := cutAt(body, MaxPayload)
	return strings.ToValidUTF8(string(body[:n]), "\uFFFD"), len(body) - n
}

// JSONPayload returns a payload as programs read it, and how many bytes of it are left out. A payload that is not
// JSON, or too large or too deep to be handed on, becomes a string: what Payload returns.
func JSONPayload(body []byte) (value json.RawMessage, left int) {
	if len(body) <= MaxPayload && isJSON(body) && !deeper(body, maxDepth) {
		return body, 0
	}
	shown, left := Payload(body)
	value, _ = json.Marshal(shown) // cannot fail for a string
	return value, left
}

func isJSON(body []byte) bool { return utf8.Valid(body) && json.Valid(body) }

// cutAt returns how many bytes to keep so that there are at most n, and none is a part of a character.
func cutAt(body []byte, n int) int {
	if len(body) <= n {
		return len(body)
	}
	for end := n; end > n-utf8.UTFMax && end > 0; end-- {
		if utf8.RuneStart(body[end]) {
			return end
		}
	}
	return n // it is not UTF-8
}

// indent writes JSON as json.Indent does, but no more than MaxPayload bytes, and not deeper than maxIndent.
func indent(src []byte) (string, int) {
	var out []byte
	depth, i := 0, 0
	newLine := func() { out = append(append(out, '\n'), strings.Repeat("  ", depth)...) }
	const reserve = len(",\n") + 2*maxIndent // nothing but a string adds more than that at once
	for i < len(src) && len(out)+reserve <= MaxPayload {
		c := src[i]
		i++
		switch c {
		case ' ', '\t', '\r', '\n':
		case '{', '[':
			out = append(out, c)
			if depth++; depth <= maxIndent && !closes(src[i:]) {
				newLine()
			}
		case '}', ']':
			if depth--; depth < maxIndent && out[len(out)-1] != '{' && out[len(out)-1] != '[' {
				newLine()
			}
			out = append(out, c)
		case ',':
			if out = append(out, c); depth <= maxIndent {
				newLine()
			}
		case ':':
			out = append(out, ": "...)
		case '"':
			word := src[i-1 : endOfString(src, i)]
			n := cutAt(word, MaxPayload-len(out))
			out = append(out, word[:n]...)
			if i += n - 1; n < len(word) {
				return string(out), len(src) - i
			}
		default:
			out = append(out, c)
		}
	}
	return string(out), len(bytes.TrimSpace(src[i:]))
}

// closes reports whether the next token ends an object or a list.
func closes(src []byte) bool {
	src = bytes.TrimLeft(src, " \t\r\n")
	return src[0] == '}' || src[0] == ']'
}

// endOfString returns the place after the string of which i is inside.
func endOfString(src []byte, i int) int {
	for ; src[i] != '"'; i++ {
		if src[i] == '\\' {
			i++ // the escaped character may be a quote
		}
	}
	return i + 1
}

// deeper reports whether objects and lists are nested more than this deep.
func deeper(src []byte, most int) bool {
	depth := 0
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '"':
			i = endOfString(src, i+1) - 1
		case '{', '[':
			if depth++; depth > most {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}
