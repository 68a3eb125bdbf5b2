package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// spellers write a text as careless servers repeat it.
var spellers = map[string]func(string) string{
	"html":         html.EscapeString,
	"html numbers": func(s string) string { return escaped(s, "&#%d;") },
	"html hex":     func(s string) string { return escaped(s, "&#X%x;") },
	"query":        url.QueryEscape,
	"path":         url.PathEscape,
	"percent":      func(s string) string { return bytewise(s, "%%%02X") },
	"percent low":  func(s string) string { return strings.ToLower(url.QueryEscape(s)) },
	"json":         func(s string) string { b, _ := json.Marshal(s); return string(b[1 : len(b)-1]) },
	"json slash":   func(s string) string { return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "/", `\/`).Replace(s) },
	"json all":     func(s string) string { return escaped(s, `\u%04X`) },
	"quoted":       func(s string) string { q := strconv.QuoteToASCII(s); return q[1 : len(q)-1] },
	"x":            func(s string) string { return bytewise(s, `\x%02x`) },
	"upper":        strings.ToUpper,
	"hex":          func(s string) string { return hex.EncodeToString([]byte(s)) },
	"base64":       func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"base64 url":   func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) },
	"base64 raw":   func(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) },
	"basic":        func(s string) string { return base64.StdEncoding.EncodeToString([]byte("app:" + s)) },
	"basic form": func(s string) string {
		return base64.StdEncoding.EncodeToString([]byte("my-app:" + url.QueryEscape(s)))
	},
}

// escaped writes each letter and sign in a format, except characters that no server escapes in that way.
func escaped(s, format string) string {
	var out strings.Builder
	for _, c := range s {
		if c > 0xffff {
			out.WriteRune(c)
			continue
		}
		fmt.Fprintf(&out, format, c)
	}
	return out.String()
}

func bytewise(s, format string) string {
	var out strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&out, format, s[i])
	}
	return out.String()
}

// However a server repeats a secret, nothing of it shows; and what others wrote beside it may.
func TestHideFindsEverySpelling(t *testing.T) {
	for _, value := range []string{"t0psecret", "pa&ss-w0rd", `a"b\c/d<e>f`, "++//==%%&&", "ümläüt ✓ key", "two  words", "%26%26%26"} {
		for first, spell := range spellers {
			for second, again := range spellers {
				if strings.HasPrefix(first, "base64") || first == "hex" || first == "basic form" || first == "basic" || first == "upper" {
					second, again = "", func(s string) string { return s } // nobody escapes these
				}
				if strings.HasPrefix(second, "bas") && first != "html" || second == "hex" || second == "upper" {
					continue
				}
				if strings.HasPrefix(second, "bas") && spell(value) != value {
					continue // nor uses base64 for what is escaped
				}
				spelled := again(spell(value))
				text := "the secret " + spelled + " is wrong"
				if got := Hide(text, "another secret", value); got != notShown && got != "the secret [redacted] is wrong" {
					t.Errorf("%s %s of %q: %q", first, second, value, got)
				}
			}
		}
	}
}

func TestHide(t *testing.T) {
	for _, tc := range []struct {
		text    string
		secrets []string
		want    string
	}{
		{"abcdefgh and abcd", []string{"abcd", "abcdefgh"}, "[redacted] and [redacted]"},
		{"Cannot POST /hooks/q8YbT0ken%20x?a", []string{"q8YbT0ken x"}, "Cannot POST /hooks/[redacted]?a"},
		{"50% of +1 \\u00 &amp; %zz are fine", []string{"t0psecret"}, "50% of +1 \\u00 &amp; %zz are fine"},
		{"no such app, id 123", []string{"app", "123", ""}, "no such app, id 123"}, // too short for secrets
	} {
		if got := Hide(tc.text, tc.secrets...); got != tc.want {
			t.Errorf("%q without %q: %q, want %q", tc.text, tc.secrets, got, tc.want)
		}
	}
}

func TestWords(t *testing.T) {
	got := strings.Join(Words([]*Value{New("one"), New("admin:two, three"), nil, New("https://chat.example/hooks/four")}), " ")
	if want := "one two three https://chat.example/hooks/four"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
