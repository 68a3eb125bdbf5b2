package status

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the kinds of trouble into docs/operations.md")

// docs/operations.md has all kinds of trouble, in the words of the page.
func TestRunbook(t *testing.T) {
	const file, begin, end = "../../../docs/operations.md", "<!-- kinds -->\n", "<!-- end of kinds -->"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(doc), begin)
	got, after, ok := strings.Cut(rest, end)
	want := "\n| kind | severity | whom it hurts | what to do |\n|---|---|---|---|\n"
	for _, k := range Kinds {
		severity := k.Severity
		if k.but != "" {
			severity += "; " + k.but
		}
		want += fmt.Sprintf("| `%s` | %s | %s | %s |\n", k.Name, severity, k.Means, k.Do)
	}
	if want += "\n"; *update {
		err = os.WriteFile(file, []byte(before+begin+want+end+after), 0o644)
	}
	if err != nil || !ok || !*update && got != want {
		t.Errorf("docs/operations.md has other kinds: go test ./internal/admin/status -run Runbook -update (%v)", err)
	}
}
