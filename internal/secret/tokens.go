package secret

import (
	"errors"
	"strings"
)

// A Token is one of the tokens in a setting. Its name says whose it is, and may be empty.
type Token struct{ Name, Value string }

// String and GoString keep the value out of everything that prints t.
func (t Token) String() string   { return t.Name + ":" + redacted }
func (t Token) GoString() string { return t.String() }

// Tokens splits a list of tokens: TOKEN, or ana:TOKEN,ben:TOKEN. Neither a name nor a token can contain
// a colon or a comma. The error shows nothing of the list.
func Tokens(list string) ([]Token, error) {
	var all []Token
	for part := range strings.SplitSeq(list, ",") {
		name, value, named := strings.Cut(strings.TrimSpace(part), ":")
		if !named {
			name, value = "", name
		}
		t := Token{strings.TrimSpace(name), strings.TrimSpace(value)}
		if t.Value == "" || named && t.Name == "" || strings.Contains(value, ":") {
			return nil, errors.New("has a part (not shown) that is neither TOKEN nor NAME:TOKEN: " +
				"it should hold one token, or several separated by commas")
		}
		all = append(all, t)
	}
	return all, nil
}
