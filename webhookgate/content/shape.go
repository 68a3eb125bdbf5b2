package content

import (
	"encoding/json"
	"fmt"
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
	types     []string // any of them; none: all
	required  []string
	members   []member
	items     *shape
	minLength int
	date      bool
}

type member struct {
	name  string
	shape *shape
}

// newShape makes a shape from a parsed schema. An unknown keyword is an error.
func newShape(schema any) (*shape, error) {
	object, ok := schema.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%v is not a schema that a shape can be made of", schema)
	}
	s := new(shape)
	for keyword, value := range object {
		var err error
		ok := true
		switch keyword {
		case "$schema", "title", "description":
		case "type":
			if one, single := value.(string); single {
				s.types = []string{one}
			} else {
				s.types, ok = stringsIn(value)
			}
		case "required":
			s.required, ok = stringsIn(value)
		case "properties":
			s.members, err = membersIn(value)
		case "items":
			s.items, err = newShape(value)
		case "minLength":
			s.minLength, ok = 1, value == json.Number("1")
		case "format":
			s.date, ok = true, value == "date"
		default:
			ok = false
		}
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%s: %v is nothing that a shape can say", keyword, value)
		}
	}
	return s, nil
}

func stringsIn(value any) (texts []string, ok bool) {
	items, ok := value.([]any)
	for _, item := range items {
		text, is := item.(string)
		texts, ok = append(texts, text), ok && is
	}
	return texts, ok
}

func membersIn(value any) ([]member, error) {
	object, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("properties: %v is not an object", value)
	}
	var members []member
	for name, schema := range object {
		s, err := newShape(schema)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name, s})
	}
	return members, nil
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
			if s.items != nil && !s.items.fits(item) {
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
	for _, t := range s.types {
		if t == typ {
			return true
		}
	}
	return len(s.types) == 0
}

func (s *shape) fitsObject(object map[string]any) bool {
	for _, name := range s.required {
		if _, ok := object[name]; !ok {
			return false
		}
	}
	for _, m := range s.members {
		if value, ok := object[m.name]; ok && !m.shape.fits(value) {
			return false
		}
	}
	return true
}

func (s *shape) fitsText(text string) bool {
	if utf8.RuneCountInString(text) < s.minLength {
		return false
	}
	if !s.date {
		return true
	}
	_, err := time.Parse(time.DateOnly, text)
	return err == nil
}

// plainInteger reports whether a number is written as an integer. To JSON Schema 1.0 and 1e2
// are integers, too: the library decides about those.
func plainInteger(n json.Number) bool { return !strings.ContainsAny(string(n), ".eE") }
