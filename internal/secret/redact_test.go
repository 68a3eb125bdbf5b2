package secret

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// spellers write a text as careless servers repeat it.
var spellers = map[string]func(string) string{
	"html":         html.EscapeString,
	"html numbers": func(s string) string { return escaped(s, "&#%d;") },
	"html hex":     func(s string) string { return escaped(s, "&#X%x;") },
	"query":        url.QueryEscape,
	"path":         url.PathEscape,
	"percent":      func(s string) string { return bytewise(s, "%%%02X") },
	"percent low":  func(s string) string { return lowHex(url.QueryEscape(s)) },
	"json":         func(s string) string { b, _ := json.Marshal(s); return string(b[1 : len(b)-1]) },
	"json slash":   func(s string) string { return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "/", `\/`).Replace(s) },
	"json all":     func(s string) string { return escaped(s, `\u%04X`) },
	"quoted":       func(s string) string { q := strconv.QuoteToASCII(s); return q[1 : len(q)-1] },
	"x":            func(s string) string { return bytewise(s, `\x%02x`) },
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

// A text that has the secret in pieces, or in hex, is not shown at all.
func TestRedactPieces(t *testing.T) {
	const secret = `pa&ss w0rd/Zq+"x<k>9`
	code, digits := base64.StdEncoding.EncodeToString([]byte("app:"+secret)), fmt.Sprintf("%x", secret)
	for name, text := range map[string]string{
		"spaces":        strings.Join(strings.Split(secret, ""), " "),
		"dashes":        strings.Join(strings.Split(secret, ""), "-"),
		"invisible":     strings.Join(strings.Split(secret, ""), "\u200b"),
		"a line end":    secret[:9] + "\r\n\t" + secret[9:],
		"without signs": "passw0rdZqxk9",
		"hex":           digits,
		"upper hex":     strings.ToUpper(digits),
		"hex of bytes":  strings.ToUpper(strings.Trim(bytewise(secret, "%02x:"), ":")),
		"hex of more":   fmt.Sprintf("%x", "app:"+secret+"\n"),
		"base64":        code[:10] + "\n" + code[10:20] + "\n" + code[20:],
	} {
		if got := Redact("the secret "+text+" is wrong", secret); got != redacted {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, text := range []string{"the password is wrong", "client 70612673 is unknown", "pa ss w0rd"} {
		if got := Redact(text, secret); got != text {
			t.Errorf("%s: %s", text, got)
		}
	}
	// too short to tell from words
	for secret, text := range map[string]string{"a-b-c": "ab, c", "+++/==": "anything", "1234567": "code 1 2 3 4 5 6 7!"} {
		if got := Redact(text, secret); got != text {
			t.Errorf("%s: %s", text, got)
		}
	}
}

func TestRedact(t *testing.T) {
	for _, tc := range []struct{ secret, text, want string }{
		{"pa&ss-w0rd", "the secret pa&amp;ss-w0rd is wrong", "the secret [redacted] is wrong"},
		{"pa&ss-w0rd", "pa&amp;amp;ss-w0rd, pa%26ss-w0rd and pa%2526ss-w0rd", "[redacted], [redacted] and [redacted]"},
		{"pa&ss-w0rd", `"pa\u0026ss-w0rd" <pa\u0026amp;ss-w0rd>`, `"[redacted]" <[redacted]>`},
		{"pa&ss-w0rd", "PA&AMP;SS-W0RD", "[redacted]"},
		{"pa&ss-w0rd", "pass-w0rd, and pa & ss", "pass-w0rd, and pa & ss"},
		{"Zk3+9aQ/x7Lm+Pw2==", "bad secret Zk3 9aQ/x7Lm Pw2== !", "bad secret [redacted] !"},
		{"two  words+more ", "two words+more. two++words%2Bmore", "[redacted]. [redacted]"},
		{"<b>markup</b>", "&lt;b&gt;markup&lt;/b&gt;", "[redacted]"},
		{"a\x1b[31mred", `a\u001b[31mred`, "[redacted]"},
		{"sch\u00fcssel-w\u00f6rt", "sch%C3%BCssel-w%F6rt sch&uuml;ssel-w&#246;rt sch\\u00fcssel-w\\xf6rt", "[redacted] [redacted] [redacted]"},
		{"t0psecret", "Basic YXBwOnQwcHNlY3JldA== YXBwMTp0MHBzZWNyZXQ=", "Basic YXBwO[redacted] YXBwMT[redacted]"},
		{"redacted", "it is redacted", "it is "},
		{"x[redacted]y", "xx[redacted]yy", "[redacted]"}, // what is left would be the secret
		{"", "nothing", "nothing"},
		{" ", "no thing", "no thing"},
		{strings.Repeat("long ", 100), "it is " + strings.Repeat("long ", 100) + "and more", "it is [redacted]"},
		{"t0psecret", strings.Repeat("a", maxText+1), "(4097 bytes, not shown)"},
	} {
		if got := Redact(tc.text, tc.secret); got != tc.want {
			t.Errorf("%.40q without %.20q: %q, want %q", tc.text, tc.secret, got, tc.want)
		}
	}
}

// However a secret is spelled, and wherever it stands, Redact leaves no spelling of it.
func FuzzRedact(f *testing.F) {
	// In this order: those that escape what must be escaped; those that escape everything; those that use base64.
	names := []string{"html", "query", "path", "percent low", "json", "json slash", "quoted",
		"html numbers", "html hex", "percent", "json all", "x",
		"base64", "base64 url", "base64 raw", "basic", "basic form"}
	if len(names) != len(spellers) {
		f.Fatal("a speller is not tried")
	}
	const everything, code = 7, 12
	secrets := []string{"t0psecret", "pa&ss-w0rd", `a"b\c/d<e>f`, "++//==%%&&", "ümläüt ✓ 😀 key", "nb\u00a0sp\u2003ace and more", strings.Repeat("✓x", 70), "  two  words  ", "amp;amp;amp;", "%26%26%26", "redacted]", "\x1b[31m\x00\xff\xfe12345678", strings.Repeat("0aZ&", 40)}
	for i, s := range secrets {
		for a := range names { // by turns: each spelling alone, of two, and of three
			switch (a + i) % 3 {
			case 0:
				f.Add(s, "%2", "%", byte(a+1), byte(0), byte(0))
			case 1:
				f.Add(s, "secret=", " is wrong", byte(a+1), byte((a+i)%len(names)+1), byte(0))
			case 2:
				f.Add(s, "", "", byte(a%7+1), byte((a+i)%12+1), byte((a+2*i)%7+1))
			}
		}
	}
	f.Fuzz(func(t *testing.T, value, before, after string, first, second, third byte) {
		if utf8.RuneCountInString(strings.TrimSpace(value)) < 8 || len(value)+len(before)+len(after) > maxText/4 {
			return
		}
		// Nobody escapes everything twice, or uses base64 twice, or for what was escaped in an unusual way.
		spelled, all, coded := value, false, false
		for i, n := range []int{int(first), int(second), int(third)} {
			switch n--; {
			case n < 0, n >= len(names), n >= everything && (all || coded), n >= code && (i > 1 || i == 1 && (first > 5 || names[n] == "basic form")):
				continue
			}
			all, coded = all || n >= everything && n < code, coded || n >= code
			spelled = spellers[names[n]](spelled)
		}
		if len(before+spelled+after) > maxText {
			return
		}
		shown := Redact(before+spelled+after, value)
		if strings.Contains(shown, value) || strings.Contains(shown, spelled) {
			t.Errorf("%q, spelled %q, shows in %q", value, spelled, shown)
		}
	})
}
