package secret

import (
	"errors"
	"strings"
)

// A Token is one of several in a setting. Its name, if it has one, says whose it is.
type Token struct{ Name, Value string }

// String keeps the value out of everything that prints t.
func (t Token) String() string { return t.Name + ":" + redacted }

// GoString does the same for %#v.
func (t Token) GoString() string { return t.String() }

// Tokens splits a list of tokens: TOKEN, or ana:TOKEN,ben:TOKEN. Neither a name nor a token has a
// colon or a comma in it. The error shows nothing of them.
func Tokens(list string) ([]Token, error) {
	var all []Token
	for part := range strings.SplitSeq(list, ",") {
		name, value, named := strings.Cut(strings.TrimSpace(part), ":")
		if !named {
			name, value = "", name
		}
		t := Token{strings.TrimSpace(name), strings.TrimSpace(value)}
		if t.Value == "" || named && t.Name == "" || strings.Contains(value, ":") {
			return nil, errors.New("has a part (not shown) that is neither TOKEN nor NAME:TOKEN: it should hold one token, or several separated by commas")
		}
		all = append(all, t)
	}
	return all, nil
}
