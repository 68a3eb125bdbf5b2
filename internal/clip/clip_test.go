package clip

import "testing"

func TestText(t *testing.T) {
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
		if got := Text(tt.s, tt.n); got != tt.want {
			t.Errorf("%q to %d bytes: %q, want %q", tt.s, tt.n, got, tt.want)
		}
	}
}
