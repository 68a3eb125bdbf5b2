package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// The table of probes in docs/security.md is what TestProbes asks for.
func TestProbesAreDocumented(t *testing.T) {
	var table strings.Builder
	for _, g := range groups() {
		fmt.Fprintf(&table, "\n**%s**\n\n| probe | local port | gate | admin port | reach the other side |\n|---|---|---|---|---|\n", g.title)
		for _, p := range g.probes {
			reach := fmt.Sprint(p.reach)
			if p.reach == 0 && p.gate == fine {
				reach = "0; gate 1"
			}
			name := strings.ReplaceAll(p.name, "|", "\\|")
			fmt.Fprintf(&table, "| %s | %s | %s | %s | %s |\n", name, shown(p.local), shown(p.gate), shown(p.admin), reach)
		}
	}
	file := filepath.Join(root, "docs/security.md")
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- probes: go test ./internal/e2e -run Documented -write -->\n", "\n<!-- end of probes -->"
	before, rest, ok1 := strings.Cut(string(doc), begin)
	old, after, ok2 := strings.Cut(rest, end)
	switch {
	case !ok1 || !ok2:
		t.Fatal("docs/security.md has no place for the table")
	case *write:
		if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case old != table.String():
		t.Error("docs/security.md does not have the table of probes as it is: go test ./internal/e2e -run Documented -write")
	}
}

// shown is an outcome as the table has it.
func shown(outcome string) string {
	if outcome == "" {
		return "–"
	}
	return strings.Replace(outcome, " closed", ", closed", 1)
}
