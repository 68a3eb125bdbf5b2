package terminal

import "testing"

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
