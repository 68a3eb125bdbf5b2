package admin

import (
	"bytes"
	"encoding/json"
	"strings"
)

// withoutContacts returns a payload less every member called contacts, wherever a
// customised payload may have it. All else stays as it was written, numbers and the
// order of members included: it is compared with the next one, and people read it. Of
// what is not JSON nothing is returned. (A Decoder is seven times slower, and a search
// does this for every webhook.)
func withoutContacts(body []byte) []byte {
	var compact bytes.Buffer
	compact.Grow(len(body))
	if json.Compact(&compact, body) != nil {
		return nil
	}
	src := compact.Bytes()
	out, from := make([]byte, 0, len(src)), 0
	for i := 0; i < len(src); {
		if src[i] != '"' {
			i++
			continue
		}
		begin, end := i, endOfString(src, i)
		if i = end; end == len(src) || src[end] != ':' || !isContacts(src[begin:end]) { // a value, or another name
			continue
		}
		i = endOfValue(src, end+1)
		// Of the commas before and after it one stays, if there are both.
		if begin > from && src[begin-1] == ',' {
			begin--
		} else if src[i] == ',' {
			i++
		}
		out = append(out, src[from:begin]...)
		from = i
	}
	return append(out, src[from:]...)
}

// endOfString is where the string ends that begins at i.
func endOfString(src []byte, i int) int {
	for i++; src[i] != '"'; i++ {
		if src[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// endOfValue is where the value of a member ends that begins at i.
func endOfValue(src []byte, i int) int {
	for depth := 0; ; i++ {
		switch src[i] {
		case '"':
			i = endOfString(src, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // it ends what the member is part of
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
}

// isContacts says it of a name in whatever way it is written.
func isContacts(name []byte) bool {
	if bytes.IndexByte(name, '\\') < 0 {
		return strings.EqualFold(string(name), `"contacts"`)
	}
	var text string
	return json.Unmarshal(name, &text) == nil && strings.EqualFold(text, "contacts")
}
