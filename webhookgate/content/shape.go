package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A shape is the built-in schema in a form that quickly recognises a webhook that fits. The
// library takes ten times as long, because it is always ready to explain what does not fit. A
// shape is made from the same schema, and knows only the keywords that occur there. Tests
// prove that it accepts a webhook only if the library does. If it does not accept one, the
// library decides and writes the report.
type shape struct {
	Schema      string   `json:"$schema"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Types       types    `json:"type"` // any of them; none: all
	Required    []string `json:"required"`
	Members     members  `json:"properties"`
	Items       *shape   `json:"items"`
	MinLength   int      `json:"minLength"`
	Date        isDate   `json:"format"`
}

// newShape makes a shape from a schema. An unknown keyword is an error.
func newShape(schema []byte) (*shape, error) {
	d := json.NewDecoder(bytes.NewReader(schema))
	d.DisallowUnknownFields()
	s := new(shape)
	return s, d.Decode(s)
}

// members are those that an object may have. A list is quicker to go through than a map.
type members []member

type member struct {
	name string
	*shape
}

func (m *members) UnmarshalJSON(text []byte) error {
	var all map[string]json.RawMessage
	err := json.Unmarshal(text, &all)
	for name, schema := range all {
		s, bad := newShape(schema)
		*m, err = append(*m, member{name, s}), errors.Join(err, bad)
	}
	return err
}

// types is one type, or a list of them.
type types []string

func (t *types) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		text = slices.Concat([]byte("["), text, []byte("]"))
	}
	return json.Unmarshal(text, (*[]string)(t))
}

// isDate is the only format that a shape knows.
type isDate bool

func (d *isDate) UnmarshalText(text []byte) error {
	if *d = string(text) == "date"; !*d {
		return errors.New("not the format of a date")
	}
	return nil
}

// fits reports whether a parsed value satisfies the schema for sure.
func (s *shape) fits(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return s.allows("object") && s.fitsObject(v)
	case []any:
		if !s.allows("array") {
			return false
		}
		for _, item := range v {
			if s.Items != nil && !s.Items.fits(item) {
				return false
			}
		}
		return true
	case string:
		return s.allows("string") && s.fitsText(v)
	case json.Number:
		return s.allows("number") || s.allows("integer") && plainInteger(v)
	case bool:
		return s.allows("boolean")
	case nil:
		return s.allows("null")
	default:
		return false
	}
}

func (s *shape) allows(typ string) bool {
	return len(s.Types) == 0 || slices.Contains(s.Types, typ)
}

func (s *shape) fitsObject(object map[string]any) bool {
	for _, name := range s.Required {
		if _, ok := object[name]; !ok {
			return false
		}
	}
	for _, m := range s.Members {
		if value, ok := object[m.name]; ok && !m.fits(value) {
			return false
		}
	}
	return true
}

func (s *shape) fitsText(text string) bool {
	var err error
	if s.Date {
		_, err = time.Parse(time.DateOnly, text)
	}
	return err == nil && utf8.RuneCountInString(text) >= s.MinLength
}

// plainInteger reports whether a number is written as an integer. To JSON Schema 1.0 and 1e2
// are integers, too: the library decides about those.
func plainInteger(n json.Number) bool { return !strings.ContainsAny(string(n), ".eE") }
