package snapshot

import (
	"reflect"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	for _, tc := range []struct {
		name, previous, next string
		want                 string // operations, in order
	}{
		{"same", `{"a":1}`, `{ "a": 1 }`, "@"},
		{"a value", `{"a":1,"b":2}`, `{"a":1,"b":3}`, "  -+ "},
		{"a member more", `{"a":1}`, `{"a":1,"b":2}`, " -++ "},
		{"far apart", `[1,2,3,4,5,6,7,8,9,10,11,12]`, `[0,2,3,4,5,6,7,8,9,10,11,13]`, " -+   @   -+ "},
		{"from nothing", `{}`, `{"a":1}`, "-+++"},
	} {
		lines, ok := Lines([]byte(tc.previous), []byte(tc.next))
		ops := ""
		for _, line := range lines {
			ops += string(line.Op)
		}
		if !ok || ops != tc.want {
			t.Errorf("%s: %q, want %q: %v", tc.name, ops, tc.want, lines)
		}
	}
	for _, bad := range []string{"", "{", "[" + strings.Repeat("1,", maxLines) + "1]"} {
		if _, ok := Lines([]byte(bad), []byte(`{}`)); ok {
			t.Errorf("%.20q is compared", bad)
		}
	}
}

// What is left of both sides, put together, are the two sides.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`[1,2,3]`), []byte(`[2,3,4]`))
	f.Fuzz(func(t *testing.T, previous, next []byte) {
		a, okA := indented(previous)
		b, okB := indented(next)
		if !okA || !okB || len(a) > 200 || len(b) > 200 {
			return
		}
		var before, after []string
		for _, line := range compare(a, b) {
			if line.Op != '+' {
				before = append(before, line.Text)
			}
			if line.Op != '-' {
				after = append(after, line.Text)
			}
		}
		if !reflect.DeepEqual(before, a) || !reflect.DeepEqual(after, b) {
			t.Errorf("%q\n%q", before, after)
		}
	})
}
