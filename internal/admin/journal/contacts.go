package journal

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxDepth is how deep a payload may go: each level is read once more.
const maxDepth = 32

// withoutContacts returns a payload less every member called contacts, wherever a
// customised payload may have it. All else stays as it was written, numbers and the
// order of members included: it is compared with the next one, and people read it. Of
// what is not JSON, or too deep, nothing is returned.
func withoutContacts(body []byte) []byte {
	out, ok := without(nil, body, maxDepth)
	if !ok {
		return nil
	}
	return out
}

// without appends value to out, less contacts.
func without(out, value []byte, depth int) ([]byte, bool) {
	value = bytes.TrimSpace(value)
	if len(value) == 0 || depth == 0 {
		return nil, false
	}
	if value[0] != '{' && value[0] != '[' {
		return append(out, value...), json.Valid(value)
	}
	d := json.NewDecoder(bytes.NewReader(value))
	open, _ := d.Token()
	out = append(out, value[0])
	for first := true; d.More(); {
		var name any
		var err error
		if open == json.Delim('{') {
			if name, err = d.Token(); err != nil {
				return nil, false
			}
		}
		var member json.RawMessage
		if err := d.Decode(&member); err != nil {
			return nil, false
		}
		text, named := name.(string)
		if named && strings.EqualFold(text, "contacts") {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		if named {
			quoted, err := json.Marshal(text)
			if err != nil {
				return nil, false
			}
			out = append(append(out, quoted...), ':')
		}
		var ok bool
		if out, ok = without(out, member, depth-1); !ok {
			return nil, false
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, false
	}
	return append(out, value[0]+2), true // ] and } stand two behind [ and {
}
