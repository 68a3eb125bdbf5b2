package text

import (
	"fmt"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestClip(t *testing.T) {
	for _, tt := range []struct {
		s    string
		n    int
		want string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc…"},
		{"éé", 3, "é…"},
		{"é", 1, "…"},
		{"a\xffb", 9, "a\uFFFDb"},
		{"a\xffbc", 3, "a\uFFFDb…"},
		{"\x80\x80\x80", 2, "…"}, // no character begins here
	} {
		if got := Clip(tt.s, tt.n); got != tt.want {
			t.Errorf("%q to %d bytes: %q, want %q", tt.s, tt.n, got, tt.want)
		}
	}
}

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"Zoë & Søn – 100 %":    "Zoë & Søn – 100 %",
		"two\nlines":           `two\u000alines`,
		"\x1b[31mred\x07":      `\u001b[31mred\u0007`,
		"turned\u202earound":   `turned\u202earound`,
		"tag\U000e0041":        `tag\udb40\udc41`,
		"not UTF-8: \xff, yes": "not UTF-8: \ufffd, yes",
	} {
		if got := Visible(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestTraceID(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for header, want := range map[string]string{
		"00-" + id + "-00f067aa0ba902b7-01":                     id,
		"00-" + id + "-00f067aa0ba902b7-00":                     id,
		"cc-" + id + "-00f067aa0ba902b7-01-what-the-future-has": id,
		"00-" + strings.ToUpper(id) + "-00f067aa0ba902b7-01":    "",
		"00-" + id[:31] + "-00f067aa0ba902b7-01":                "",
		"00-" + id[:31] + "\n-00f067aa0ba902b7-01":              "",
		"00-" + id: "",
		id:         "",
		"":         "",
		"---":      "",
	} {
		if got := TraceID(http.Header{"Traceparent": {header}}); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
	if got := TraceID(nil); got != "" {
		t.Errorf("without: %q", got)
	}
}

func TestUnquoted(t *testing.T) {
	for text, want := range map[string]string{
		"connection refused": "connection refused",
		fmt.Sprintf("malformed HTTP response %q", `{"a":"t0ken \\"}`): `malformed HTTP response "…"`,
		fmt.Sprintf("starting with %q; err=%q", "t0\nken", "t0\"ken"): `starting with "…"; err="…"`,
		`cut off: "t0k`:                           `cut off: "…"`,
		"malformed MIME header line: t0ken":       "malformed MIME header",
		"dial: malformed MIME header: x: \"t0k\"": "dial: malformed MIME header",
	} {
		if got := Unquoted(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// Of an error page people see its text, and of anything else all of it, on one line.
func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "unknown\n tenant": "unknown tenant", "1 < 2 > 0": "1 < 2 > 0", "users <script> may": "users <script> may",
		"<!DOCTYPE html><html><head><title>502</title><style>p{}</style></head>\n<body><h1>Bad&nbsp;Gateway</h1><!-- x --><p>nginx</p></body></html>": "Bad Gateway nginx",
		"<html><body>cut off <scr": "cut off", "<p>a &lt;b&gt;</p>": "a <b>",
	} {
		if got := Plain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Whatever a word is, a shell reads it back as that one word, and runs nothing.
func TestQuote(t *testing.T) {
	words := []string{
		"acme", "eu/acme", "", " ", "x;id>&2;#", "$(id)", "`id`", "${IFS}", "$HOME", "it's", "''", `"`, `a"b`, `\`, `x\`, `\'`, `\';id;#`, `'\''`, `a\\b`,
		"~", "~root", "*", "?", "[a-z]", "{a,b}", "!!", "a!b", "#", "&", "|", "<x", "(", "-n", "--tenant", "=ls", "a=b", "users=25", "%1", "eu/a%1Bb", "a\tb", "two\nlines", "ends\n",
		"Zoë & Søn", "http://[::1]:9000", "/etc/usher/my gate.env", "\x01\x7f", "\u202ex",
	}
	for _, shell := range []string{"sh", "bash", "zsh"} {
		if _, err := exec.LookPath(shell); err != nil {
			if shell == "sh" {
				t.Skip(err)
			}
			continue
		}
		line := `printf '%s\0'`
		for _, w := range words {
			line += " " + Quote(w)
		}
		out, err := exec.Command(shell, "-c", line).Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, words) {
			t.Errorf("%s: %v\n%q, want\n%q", shell, err, got, words)
		}
	}
	for word, want := range map[string]string{
		// nobody needs quotes here
		"eu/acme": "eu/acme", "/etc/usher/gate.env": "/etc/usher/gate.env", "http://127.0.0.1:9000": "http://127.0.0.1:9000",
		`it's`: `'it'"'"'s'`, `a\b`: `'a'"\\"'b'`, // no backslash in single quotes: for fish it is an escape there, too
	} {
		if got := Quote(word); got != want && runtime.GOOS != "windows" {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}
