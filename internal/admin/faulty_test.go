package admin

import (
	"strings"
	"testing"

	"usher/internal/content"
	"usher/internal/text"
)

func TestBeside(t *testing.T) {
	payload, _ := text.Payload([]byte(`{"type":"T","payload":{"a/b":[1e999,{"c":"5"},[],{}],"d":{},"d":{"e":"}"},"f\"":"[\n"},"g":[[1],[2,3]]}`))
	faults := []content.Fault{
		{Path: "/payload/a~1b/1/c", Message: "is odd"}, {Path: "/payload/d", Message: "is there twice"}, {Path: "/payload/x", Message: "is missing"},
		{Path: "/payload/d/z/y", Message: "is missing"}, {Message: "is bad"}, {Path: "/g/1/1", Message: "is three"}, {Path: "strange", Message: "is somewhere"}, {Path: `/payload/f"`, Message: "is open"},
	}
	var got []string
	for _, line := range faultyLines(payload, faults) {
		if len(line.Faults) > 0 {
			got = append(got, strings.TrimSpace(line.Text)+" ← "+strings.Join(line.Faults, ", "))
		}
	}
	want := []string{
		`{ ← is bad, strange is somewhere`, `"payload": { ← x is missing`, `"c": "5" ← is odd`, `"d": {}, ← is there twice, z/y is missing`,
		`"d": { ← is there twice, z/y is missing`, `"f\"": "[\n" ← is open`, `3 ← is three`,
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}
