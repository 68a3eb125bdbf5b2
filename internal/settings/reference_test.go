package settings

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of settings into docs/reference.md")

// Help and docs/reference.md show every setting, once, with the default that it has.
func TestReferenceIsComplete(t *testing.T) {
	var shown []string
	for _, sec := range reference {
		for _, row := range sec.rows {
			shown = append(shown, row.name)
			if row.meaning == "" || strings.ContainsAny(row.meaning, "|\n") {
				t.Errorf("%s: %q does not fit into a table", row.name, row.meaning)
			}
		}
	}
	for _, v := range Variables() {
		if i := slices.Index(shown, v.Name); i < 0 {
			t.Errorf("the reference does not show %s", v.Name)
		} else {
			shown = slices.Delete(shown, i, i+1)
		}
	}
	if len(shown) > 0 {
		t.Errorf("the reference shows twice, or nobody knows: %q", shown)
	}
}

// docs/reference.md has the tables that help is made of.
func TestReference(t *testing.T) {
	const file = "../../docs/reference.md"
	const begin, end = "<!-- settings: go test ./internal/settings -run TestReference -update -->\n", "<!-- end of settings -->"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(doc), begin)
	got, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatal("docs/reference.md has no place for the settings")
	}
	var tables strings.Builder
	writeTables(&tables)
	want := "\n" + tables.String()
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != want {
		t.Error("docs/reference.md does not have the settings as they are: go test ./internal/settings -run TestReference -update")
	}
	if intro := strings.Join(strings.Fields(before), " "); !strings.Contains(intro, settingsIntro) {
		t.Errorf("docs/reference.md does not begin its settings as help does: %s", settingsIntro)
	}
}

// writeTables writes the settings as they stand in docs/reference.md.
func writeTables(w io.Writer) {
	known := byName()
	for _, sec := range reference {
		fmt.Fprintf(w, "### %s\n\n", sec.title)
		if sec.intro != "" {
			fmt.Fprintf(w, "%s\n\n", sec.intro)
		}
		fmt.Fprintf(w, "| variable | default | meaning |\n|---|---|---|\n")
		for _, row := range sec.rows {
			v := known[row.name]
			fmt.Fprintf(w, "| `%s` | %s | %s |\n", row.name, row.defaultOf(v), row.says(v))
		}
		fmt.Fprintln(w)
	}
}
