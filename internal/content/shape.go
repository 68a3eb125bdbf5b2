package content

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A shape is the built-in schema in a form that quickly recognises a webhook that fits. The
// library takes ten times as long, because it is always ready to explain what does not fit. A
// shape knows only the keywords that occur in the built-in schema. Tests prove that it accepts a
// webhook only if the library does. If a shape does not accept a webhook, the library decides, and
// writes the faults.
type shape struct {
	types     []string // the value must have one of them; empty: any type
	required  []string
	members   []member // the schemas of an object's members; a slice is faster to go through than a map
	items     *shape
	minLength int
}

type member struct {
	name string
	*shape
}

func newShape(schema *jsonschema.Schema) *shape {
	s := &shape{required: schema.Required}
	if schema.Types != nil {
		s.types = schema.Types.ToStrings()
	}
	if schema.MinLength != nil {
		s.minLength = *schema.MinLength
	}
	if items, ok := schema.Items.(*jsonschema.Schema); ok {
		s.items = newShape(items)
	}
	for name, schema := range schema.Properties {
		s.members = append(s.members, member{name, newShape(schema)})
	}
	return s
}

// fits reports whether a parsed value satisfies the schema for sure.
func (s *shape) fits(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range s.required {
			if _, ok := v[name]; !ok {
				return false
			}
		}
		for _, m := range s.members {
			if value, ok := v[m.name]; ok && !m.fits(value) {
				return false
			}
		}
		return s.allows("object")
	case []any:
		for _, item := range v {
			if s.items != nil && !s.items.fits(item) {
				return false
			}
		}
		return s.allows("array")
	case string:
		return utf8.RuneCountInString(v) >= s.minLength && s.allows("string")
	case json.Number:
		return s.allows("number") || s.allows("integer") && plainInteger(v)
	case bool:
		return s.allows("boolean")
	default: // null
		return s.allows("null")
	}
}

func (s *shape) allows(typ string) bool {
	return len(s.types) == 0 || slices.Contains(s.types, typ)
}

// plainInteger reports whether a number is written as an integer. To JSON Schema 1.0 and 1e2
// are integers, too; the library decides about those.
func plainInteger(n json.Number) bool { return !strings.ContainsAny(string(n), ".eE") }
