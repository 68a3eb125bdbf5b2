package decisions

import (
	"bytes"
	"encoding/json"
	"strings"
)

// withoutContacts returns a payload less every member called contacts, wherever a
// customised payload may have it. All else stays as it was written, numbers and the
// order of members included: it is compared with the next one, and people read it. Of
// what is not JSON nothing is returned.
func withoutContacts(body []byte) []byte {
	var compact bytes.Buffer
	if json.Compact(&compact, body) != nil {
		return nil
	}
	src := compact.Bytes()
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	out, from := make([]byte, 0, len(src)), 0
	var inObject []bool // of each value that is open
	for name := false; ; {
		begin := max(from, int(d.InputOffset())) // where the last token ended
		token, err := d.Token()
		if err != nil {
			return append(out, src[from:]...) // the end: json.Compact has found no fault in it
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			inObject = append(inObject, token == json.Delim('{'))
		case json.Delim('}'), json.Delim(']'):
			inObject = inObject[:len(inObject)-1]
		default:
			if text, _ := token.(string); name && strings.EqualFold(text, "contacts") {
				out = append(out, src[from:begin]...)
				var value json.RawMessage
				if d.Decode(&value) != nil {
					return nil
				}
				// With the comma after it, where there is none before.
				if from = int(d.InputOffset()); src[from] == ',' && out[len(out)-1] == '{' {
					from++
				}
				continue // the next is a name again
			}
			if name {
				name = false
				continue
			}
		}
		name = len(inObject) > 0 && inObject[len(inObject)-1]
	}
}
