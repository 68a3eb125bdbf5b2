package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

// Every test that the documents name is there.
func TestNamedTestsExist(t *testing.T) {
	var code strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		code.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"security.md", "reliability.md", "dependencies.md"} {
		doc, err := os.ReadFile(filepath.Join(root, "docs", name))
		if err != nil {
			t.Error(err)
			continue
		}
		named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)`").FindAllStringSubmatch(string(doc), -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", name)
		}
		for _, m := range named {
			if !strings.Contains(code.String(), "func "+m[1]+"(") {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
}

// docs/dependencies.md says of every direct dependency why it is there.
func TestDependenciesAreDocumented(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	direct := regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1)
	tools := regexp.MustCompile(`(?m)^(?:tool |\t)(\S+/cmd/\S+)$`).FindAllStringSubmatch(string(mod), -1)
	if len(direct) == 0 || len(tools) == 0 {
		t.Fatalf("go.mod has %d direct dependencies and %d tools", len(direct), len(tools))
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\S+)` \\|").FindAllStringSubmatch(string(doc), -1) {
		listed[m[1]] = true
	}
	for _, m := range append(direct, tools...) {
		if !listed[m[1]] {
			t.Errorf("%s is not listed", m[1])
		}
		delete(listed, m[1])
	}
	for name := range listed {
		t.Errorf("%s is listed, but not in go.mod", name)
	}
}
