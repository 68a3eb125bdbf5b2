package status

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// What to do begins with the first sentence, without what is in parentheses.
var (
	firstSentence = regexp.MustCompile(`^.*?[.](?: |$)`)
	parentheses   = regexp.MustCompile(` \([^)]*\)`)
)

var update = flag.Bool("update", false, "write the kinds of trouble into docs/operations.md")

// docs/operations.md has all kinds of trouble, and how what to do begins. 'usher status' says the rest, and whom it hurts.
func TestRunbook(t *testing.T) {
	const file, from, to = "../../../docs/operations.md", "<!-- kinds -->\n", "<!-- end of kinds -->"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(doc), from)
	got, after, ok := strings.Cut(rest, to)
	want := "\n"
	for _, k := range Kinds {
		severity := k.Severity
		if k.but != "" {
			severity += "; " + k.but
		}
		want += fmt.Sprintf("- `%s` (%s): %s\n", k.Name, severity, strings.TrimSpace(firstSentence.FindString(parentheses.ReplaceAllString(k.Do, ""))))
	}
	if want += "\n"; *update {
		err = os.WriteFile(file, []byte(before+from+want+to+after), 0o644)
	}
	if err != nil || !ok || !*update && got != want {
		t.Errorf("docs/operations.md has other kinds: go test ./internal/admin/status -run Runbook -update (%v)", err)
	}
}
