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

	// maxIndent is how deep a payload may be that people see indented: a deeper one would become many times as large.
	maxIndent = 16

	// maxDepth is how deep a payload may be that programs get as JSON. Many parsers give up soon after.
	maxDepth = 64
)

// Payload returns a payload as people read it, and how many bytes of it are left out. JSON is indented, unless it is
// too large for that; of anything else the bytes become valid UTF-8.
func Payload(body []byte) (shown string, left int) {
	var compact, indented bytes.Buffer
	if utf8.Valid(body) && json.Compact(&compact, body) == nil {
		body = compact.Bytes()
		if len(body) <= MaxPayload && isJSON(body, maxIndent) && json.Indent(&indented, body, "", "  ") == nil {
			body = indented.Bytes()
		}
	}
	n := len(body)
	if n > MaxPayload {
		for n = MaxPayload; n > MaxPayload-utf8.UTFMax && !utf8.RuneStart(body[n]); n-- {
		}
	}
	return strings.ToValidUTF8(string(body[:n]), "\uFFFD"), len(body) - n
}

// JSONPayload returns a payload as programs read it, and how many bytes of it are left out. A payload that is not
// JSON, or too large or too deep to be handed on, becomes a string: what Payload returns.
func JSONPayload(body []byte) (value json.RawMessage, left int) {
	if len(body) <= MaxPayload && isJSON(body, maxDepth) {
		return body, 0
	}
	shown, left := Payload(body)
	value, _ = json.Marshal(shown) // cannot fail for a string
	return value, left
}

// isJSON reports whether a payload is JSON, and not deeper than this.
func isJSON(body []byte, most int) bool {
	if !utf8.Valid(body) || !json.Valid(body) {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++ // the escaped character may be a quote
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > most {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}
