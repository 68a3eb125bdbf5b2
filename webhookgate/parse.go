package webhookgate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxDepth bounds the stack that a body can make us and the receiver use.
	maxDepth = 64

	// maxValues bounds how many values a body can hold, or one for each ten bytes
	// where bodies may be so large. A value of two bytes costs forty in memory, and
	// eight hundred where it is of the wrong type and that has to be said.
	maxValues = 100_000

	// maxNumber and maxExponent bound what a number can cost: math/big, which
	// the schema is checked with, needs ten milliseconds for 1e999999, and a
	// body has room for a hundred thousand of those. Both are beyond what a
	// float64 can hold.
	maxNumber   = 400
	maxExponent = 400
)

// parseBody reads body as one JSON value that everybody reads the same way. On
// top of the grammar it asks for what RFC 7493 (I-JSON) asks for: valid UTF-8,
// no name twice in one object, no half of a surrogate pair. encoding/json lets
// all of these pass, and then what was checked need not be what the receiver
// reads. Numbers stay as they are written, as json.Number.
func parseBody(body []byte) (any, *answer) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, reject(http.StatusBadRequest, "the body is empty")
	}
	if !utf8.Valid(body) {
		return nil, reject(http.StatusBadRequest, fmt.Sprintf("the body is not valid UTF-8, at %s", position(body, badRune(body))))
	}
	if !json.Valid(body) {
		return nil, reject(http.StatusBadRequest, "the body is not JSON: "+syntaxError(body))
	}
	p := parser{src: string(body)}
	value, fault := p.value(0)
	if fault != nil {
		fault.Path = clip(fault.Path, maxShown)
		return nil, faulty(http.StatusBadRequest, []Fault{*fault})
	}
	return value, nil
}

// A parser builds a value from src, whose grammar encoding/json has checked
// already: so it meets nothing but JSON, and finds an end to all that it begins.
// (Decoder.Token would do, at several times the cost.) Faults get their path on the
// way out.
type parser struct {
	src    string
	pos    int
	values int // so far
}

func (p *parser) value(depth int) (any, *Fault) {
	if p.values++; p.values > max(maxValues, len(p.src)/10) {
		return nil, &Fault{Message: "is one value too many"}
	}
	p.space()
	switch p.src[p.pos] {
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
	if depth > maxDepth {
		return nil, tooDeep()
	}
	members := make(map[string]any)
	for p.pos++; p.more('}'); {
		name, fault := p.text()
		if fault != nil {
			return nil, fault
		}
		if _, twice := members[name]; twice {
			return nil, (&Fault{Message: "is there twice"}).below(name)
		}
		p.space()
		p.pos++ // the colon
		value, fault := p.value(depth)
		if fault != nil {
			return nil, fault.below(name)
		}
		members[name] = value
	}
	return members, nil
}

func (p *parser) array(depth int) (any, *Fault) {
	if depth > maxDepth {
		return nil, tooDeep()
	}
	items := []any{}
	for p.pos++; p.more(']'); {
		item, fault := p.value(depth)
		if fault != nil {
			return nil, fault.below(strconv.Itoa(len(items)))
		}
		items = append(items, item)
	}
	return items, nil
}

// more steps to the next member or item, or over end when there is none.
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
			p.pos++ // what is escaped may be a quote
		}
	}
	p.pos++
	quoted := p.src[start:p.pos]
	if !escaped {
		return quoted[1 : len(quoted)-1], nil
	}
	var s string
	if err := json.Unmarshal([]byte(quoted), &s); err != nil || halfPair(quoted) {
		return "", &Fault{Message: "holds half a character: a surrogate without its other half"}
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
		return "", &Fault{Message: "is a number beyond all bounds"}
	}
	return json.Number(literal), nil
}

func tooDeep() *Fault {
	return &Fault{Message: fmt.Sprintf("is nested more than %d deep", maxDepth)}
}

// below says that the fault was found in the member or item called token.
func (f *Fault) below(token string) *Fault {
	f.Path = "/" + pointerEscape.Replace(token) + f.Path
	return f
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// halfPair reports whether a JSON string has an escape for one half of a
// surrogate pair without the other.
func halfPair(quoted string) bool {
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		if i++; quoted[i] != 'u' {
			continue
		}
		r := codeUnit(quoted[i+1:])
		i += 4
		if !utf16.IsSurrogate(r) {
			continue
		}
		rest, ok := strings.CutPrefix(quoted[i+1:], `\u`)
		if !ok || utf16.DecodeRune(r, codeUnit(rest)) == utf8.RuneError {
			return true
		}
		i += 6
	}
	return false
}

// codeUnit reads the four digits of a \u escape.
func codeUnit(digits string) rune {
	n, _ := strconv.ParseUint(digits[:4], 16, 32) // digits, as encoding/json has seen
	return rune(n)
}

// syntaxError says what encoding/json has against body, and where.
func syntaxError(body []byte) string {
	err := json.Unmarshal(body, new(json.RawMessage))
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return fmt.Sprint(err)
	}
	return fmt.Sprintf("%v, at %s", syntax, position(body, int(syntax.Offset)-1))
}

// badRune is where body stops being UTF-8.
func badRune(body []byte) int {
	for i, r := range string(body) {
		if _, size := utf8.DecodeRune(body[i:]); r == utf8.RuneError && size == 1 {
			return i
		}
	}
	return len(body)
}

// position writes an offset as editors do, counting from one.
func position(body []byte, offset int) string {
	before := body[:max(0, min(offset, len(body)))]
	line := bytes.Count(before, []byte("\n"))
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Sprintf("line %d, column %d", line+1, column+1)
}
