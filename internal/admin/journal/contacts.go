package journal

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxDepth is how deep a payload may go; the gate lets none pass that goes deeper.
const maxDepth = 64

// withoutContacts returns a payload less every member called contacts, wherever a
// customised payload may have it. All else stays as it was written, numbers and the
// order of members included: it is compared with the next one, and people read it. Of
// what is not JSON, or too deep, nothing is returned.
func withoutContacts(body []byte) []byte {
	var compact bytes.Buffer
	compact.Grow(len(body))
	if json.Compact(&compact, body) != nil {
		return nil
	}
	c := copier{src: compact.Bytes(), out: make([]byte, 0, compact.Len())}
	c.value(true, maxDepth)
	if c.tooDeep {
		return nil
	}
	return c.out
}

// copier copies JSON that is well-formed and has no spaces between its parts. (A
// Decoder would read each level once more: this is done for every webhook.)
type copier struct {
	src     []byte
	pos     int
	out     []byte
	tooDeep bool
}

// value passes over a value, and copies it if it is to be kept.
func (c *copier) value(keep bool, depth int) {
	switch c.src[c.pos] {
	case '{':
		c.members(keep, depth)
	case '[':
		c.items(keep, depth)
	case '"':
		c.copy(c.text(), keep)
	default:
		begin := c.pos
		for c.pos < len(c.src) && c.src[c.pos] != ',' && c.src[c.pos] != ']' && c.src[c.pos] != '}' {
			c.pos++
		}
		c.copy(c.src[begin:c.pos], keep)
	}
}

func (c *copier) members(keep bool, depth int) {
	if c.enter(keep, depth); c.tooDeep {
		return
	}
	first := true
	for c.src[c.pos] != '}' {
		if c.src[c.pos] == ',' {
			c.pos++
		}
		name := c.text()
		c.pos++ // the colon
		kept := keep && !isContacts(name)
		if kept && !first {
			c.out = append(c.out, ',')
		}
		c.copy(c.src[c.pos-1-len(name):c.pos], kept) // with its colon
		first = first && !kept
		if c.value(kept, depth-1); c.tooDeep {
			return
		}
	}
	c.mark(keep)
}

func (c *copier) items(keep bool, depth int) {
	if c.enter(keep, depth); c.tooDeep {
		return
	}
	for c.src[c.pos] != ']' {
		if c.src[c.pos] == ',' {
			c.mark(keep)
		}
		if c.value(keep, depth-1); c.tooDeep {
			return
		}
	}
	c.mark(keep)
}

// enter passes over the bracket that begins a value.
func (c *copier) enter(keep bool, depth int) {
	c.tooDeep = depth == 0
	c.mark(keep)
}

// mark passes over a bracket or a comma.
func (c *copier) mark(keep bool) {
	c.copy(c.src[c.pos:c.pos+1], keep)
	c.pos++
}

func (c *copier) copy(b []byte, keep bool) {
	if keep {
		c.out = append(c.out, b...)
	}
}

// text passes over a string, and returns it as it is written.
func (c *copier) text() []byte {
	begin := c.pos
	for c.pos++; c.src[c.pos] != '"'; c.pos++ {
		if c.src[c.pos] == '\\' {
			c.pos++
		}
	}
	c.pos++
	return c.src[begin:c.pos]
}

// isContacts says it of a name in whatever way it is written.
func isContacts(name []byte) bool {
	if bytes.IndexByte(name, '\\') < 0 {
		return len(name) == len(`"contacts"`) && strings.EqualFold(string(name), `"contacts"`)
	}
	var text string
	return json.Unmarshal(name, &text) == nil && strings.EqualFold(text, "contacts")
}
