package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxDepth limits how much stack usher and the receiver need for a body.
	maxDepth = 64

	// maxValues limits how many values a body can have; a very large body may have one for each
	// ten bytes. A value of two bytes takes forty bytes of memory, and eight hundred if it has the
	// wrong type, because of the fault.
	maxValues = 100_000

	// maxNumber and maxExponent limit the time that a number takes. The library checks numbers with
	// math/big, which needs ten milliseconds for 1e999999, and a body can have a hundred
	// thousand of those. Both limits are beyond what a float64 can hold.
	maxNumber   = 400
	maxExponent = 400
)

// Parse reads body as one JSON value that every parser reads the same way. Besides the
// grammar it requires what RFC 7493 (I-JSON) requires: valid UTF-8, no name twice in one
// object, no half of a surrogate pair. encoding/json accepts bodies that break these rules, and then
// the receiver may read something else than usher has checked. Numbers stay as they are written, as
// json.Number.
func Parse(body []byte) (any, *Fault) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, &Fault{Message: "is empty"}
	}
	if !utf8.Valid(body) {
		return nil, &Fault{Message: "is not valid UTF-8"}
	}
	if !json.Valid(body) {
		return nil, &Fault{Message: "is not JSON: " + syntaxError(body)}
	}
	p := parser{src: string(body)}
	value, fault := p.value(0)
	if fault != nil {
		slices.Reverse(p.path)
		fault.Path = pointer(p.path)
		return nil, fault
	}
	return value, nil
}

// A parser builds a value from src. encoding/json has already checked the grammar, so the
// parser meets only JSON, and everything that begins also ends. (Decoder.Token would work, at
// several times the cost.)
type parser struct {
	src    string
	pos    int
	values int      // so far
	path   []string // the path to the fault, the innermost name first; filled on the way back up
}

// below notes that the fault is inside the member or item called name.
func (p *parser) below(name string, f *Fault) *Fault {
	p.path = append(p.path, name)
	return f
}

func (p *parser) value(depth int) (any, *Fault) {
	if p.values++; p.values > max(maxValues, len(p.src)/10) {
		return nil, &Fault{Message: "is one value more than allowed"}
	}
	p.space()
	first := p.src[p.pos]
	if depth == maxDepth && (first == '{' || first == '[') {
		return nil, &Fault{Message: fmt.Sprintf("is nested more than %d deep", maxDepth)}
	}
	switch first {
	case '{':
		return p.object(depth + 1)
	case '[':
		return p.array(depth + 1)
	case '"':
		return p.text()
	case 't':
		p.pos += len("true")
		return true, nil
	case 'f':
		p.pos += len("false")
		return false, nil
	case 'n':
		p.pos += len("null")
		return nil, nil
	default:
		return p.number()
	}
}

func (p *parser) object(depth int) (any, *Fault) {
	members := make(map[string]any)
	for p.pos++; p.more('}'); {
		name, fault := p.text()
		if fault != nil {
			return nil, fault
		}
		if _, twice := members[name]; twice {
			return nil, p.below(name, &Fault{Message: "is in the object twice"})
		}
		p.space()
		p.pos++ // the colon
		value, fault := p.value(depth)
		if fault != nil {
			return nil, p.below(name, fault)
		}
		members[name] = value
	}
	return members, nil
}

func (p *parser) array(depth int) (any, *Fault) {
	items := []any{}
	for p.pos++; p.more(']'); {
		item, fault := p.value(depth)
		if fault != nil {
			return nil, p.below(strconv.Itoa(len(items)), fault)
		}
		items = append(items, item)
	}
	return items, nil
}

// more moves to the next member or item, or past end if there is none.
func (p *parser) more(end byte) bool {
	p.space()
	switch p.src[p.pos] {
	case end:
		p.pos++
		return false
	case ',':
		p.pos++
		p.space()
	}
	return true
}

func (p *parser) space() {
	for {
		switch p.src[p.pos] {
		case ' ', '\t', '\r', '\n':
			p.pos++
		default:
			return
		}
	}
}

func (p *parser) text() (string, *Fault) {
	start, escaped := p.pos, false
	for p.pos++; p.src[p.pos] != '"'; p.pos++ {
		if p.src[p.pos] == '\\' {
			escaped = true
			p.pos++ // the escaped character may be a quote
		}
	}
	p.pos++
	quoted := p.src[start:p.pos]
	if !escaped {
		return quoted[1 : len(quoted)-1], nil
	}
	var s string
	err := json.Unmarshal([]byte(quoted), &s)
	// encoding/json replaces half a surrogate pair with U+FFFD. Then s has more of these than the
	// sender sent.
	escapes := strings.ToLower(strings.ReplaceAll(quoted, `\\`, ""))
	sent := strings.Count(quoted, "\uFFFD") + strings.Count(escapes, `\ufffd`)
	if err != nil || strings.Count(s, "\uFFFD") > sent {
		return "", &Fault{Message: "has half a character: a surrogate without its other half"}
	}
	return s, nil
}

func (p *parser) number() (json.Number, *Fault) {
	start := p.pos
	for p.pos < len(p.src) && strings.IndexByte("+-.0123456789Ee", p.src[p.pos]) >= 0 {
		p.pos++
	}
	literal := p.src[start:p.pos]
	exponent, err := 0, error(nil)
	if e := strings.IndexAny(literal, "Ee"); e >= 0 {
		exponent, err = strconv.Atoi(literal[e+1:])
	}
	if err != nil || max(exponent, -exponent) > maxExponent || len(literal) > maxNumber {
		return "", &Fault{Message: "is a number too large or too long"}
	}
	return json.Number(literal), nil
}

// syntaxError says why encoding/json refuses body, and where.
func syntaxError(body []byte) string {
	err := json.Unmarshal(body, new(json.RawMessage))
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("%v, at %s", syntax, position(body, int(syntax.Offset)-1))
	}
	return fmt.Sprint(err)
}

// position writes an offset as a line and a column, counted from one as editors do.
func position(body []byte, offset int) string {
	before := body[:max(0, min(offset, len(body)))]
	line := bytes.Count(before, []byte("\n"))
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Sprintf("line %d, column %d", line+1, column+1)
}
