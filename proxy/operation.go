package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// What the log says about a failed call, so that somebody can find it: the name of its
// GraphQL operation, and the caller's own ids. Nothing else of a call is ever logged, and
// these only if they have their documented form.

const (
	// maxSearched is how much of a body is searched for a name.
	maxSearched = 256 << 10
	// maxName is the longest name that is logged: others choose them.
	maxName = 128
)

// operation returns the name of the call's operation: operationName, or the name of the
// query's first operation. It is empty if there is none, or the body was not kept.
func operation(r *http.Request, body *payload) string {
	if len(body.bytes) > 0 {
		return operationIn(body.reader())
	}
	if r.Method == http.MethodGet {
		query := r.URL.Query()
		return named(query.Get("operationName"), query.Get("query"))
	}
	return ""
}

// operationIn finds the name in a GraphQL request in JSON, or in the first of several.
// It reads token by token, so that a large body is not in memory twice.
func operationIn(body io.Reader) string {
	d := json.NewDecoder(io.LimitReader(body, maxSearched))
	open, err := d.Token()
	if open == json.Delim('[') {
		open, err = d.Token()
	}
	if err != nil || open != json.Delim('{') {
		return ""
	}
	var name, query string
	for name == "" && d.More() {
		key, err := d.Token()
		if err != nil {
			break
		}
		value, err := d.Token()
		if err != nil || skipRest(d, value) != nil {
			break
		}
		if text, ok := value.(string); ok {
			switch key {
			case "operationName":
				name = text
			case "query":
				query = text
			}
		}
	}
	return named(name, query)
}

// skipRest skips the rest of a value whose first token was read.
func skipRest(d *json.Decoder, first json.Token) error {
	for depth := nesting(first); depth > 0; {
		token, err := d.Token()
		if err != nil {
			return err
		}
		depth += nesting(token)
	}
	return nil
}

func nesting(token json.Token) int {
	switch token {
	case json.Delim('{'), json.Delim('['):
		return 1
	case json.Delim('}'), json.Delim(']'):
		return -1
	}
	return 0
}

// named returns name if it is a GraphQL name, otherwise that of the query's first operation.
func named(name, query string) string {
	if n := nameLength(name); n > 0 && n == len(name) {
		return name[:min(n, maxName)]
	}
	name = firstOperation(query)
	return name[:min(len(name), maxName)]
}

// firstOperation returns the name of the first operation in a GraphQL document; empty if it
// has none. Fragments may come before it.
func firstOperation(document string) string {
	for rest := ignored(document); rest != ""; rest = ignored(rest) {
		word := rest[:nameLength(rest)]
		rest = rest[len(word):]
		switch word {
		case "query", "mutation", "subscription":
			rest = ignored(rest)
			return rest[:nameLength(rest)]
		case "fragment":
			rest = afterDefinition(rest)
		default: // an operation without a name, or not GraphQL
			return ""
		}
	}
	return ""
}

// afterDefinition returns what follows the selection set: the first braces that are not
// inside other brackets.
func afterDefinition(s string) string {
	depth, inBraces := 0, false
	for s = ignored(s); s != ""; s = ignored(s) {
		switch s[0] {
		case '"':
			s = afterString(s)
			continue
		case '{', '(', '[':
			inBraces = inBraces || depth == 0 && s[0] == '{'
			depth++
		case '}', ')', ']':
			depth--
			if depth <= 0 && inBraces {
				return s[1:]
			}
		}
		s = s[1:]
	}
	return ""
}

// afterString returns what follows the string, or block string, that s begins with.
func afterString(s string) string {
	quote := `"`
	if strings.HasPrefix(s, `"""`) {
		quote = `"""`
	}
	s = s[len(quote):]
	for s != "" && !strings.HasPrefix(s, quote) {
		switch {
		case quote == `"""` && strings.HasPrefix(s, `\"""`):
			s = s[4:]
		case quote == `"` && s[0] == '\\' && len(s) > 1:
			s = s[2:]
		default:
			s = s[1:]
		}
	}
	return strings.TrimPrefix(s, quote)
}

// ignored returns s without leading white space, commas and comments, which GraphQL ignores.
func ignored(s string) string {
	for {
		s = strings.TrimLeft(s, " \t\r\n,\ufeff")
		if !strings.HasPrefix(s, "#") {
			return s
		}
		end := strings.IndexAny(s, "\r\n")
		if end < 0 {
			return ""
		}
		s = s[end:]
	}
}

// nameLength returns the length of the GraphQL name that s begins with.
func nameLength(s string) int {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9' && i > 0:
		default:
			return i
		}
	}
	return len(s)
}

// requestID returns the caller's X-Request-Id if it is safe to log.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	if len(id) > maxName || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return ""
	}
	return id
}
