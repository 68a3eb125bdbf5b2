package settings

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of settings into docs/reference.md")

// Each setting is in the table once, and its default is a valid value.
func TestTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, v := range Variables() {
		if seen[v.Name] {
			t.Errorf("%s is in the table twice", v.Name)
		}
		seen[v.Name] = true
		if v.meaning == "" || v.unset == "" || strings.ContainsAny(v.unset+v.meaning, "|\n") {
			t.Errorf("%s: %q, %q does not fit into a table", v.Name, v.unset, v.meaning)
		}
	}
	r := newReader(nil)
	if r.read(Variables(), "0"); r.problems != nil {
		t.Error("a default can't be read:", r.problems)
	}
}

// docs/reference.md has the same table of settings as the help.
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

// On a terminal the help has no Markdown: a link is its words, and where to read on.
func TestHelpIsPlain(t *testing.T) {
	var out strings.Builder
	WriteHelp(&out)
	help := strings.Join(strings.Fields(out.String()), " ")
	if strings.Contains(help, "](") || strings.Contains(help, "`") || !strings.Contains(help, "takes in (docs/reliability.md#catch-up)") {
		t.Error(help)
	}
}

// writeTables writes the settings in the form of docs/reference.md.
func writeTables(w io.Writer) {
	for _, sec := range new(Settings).sections() {
		fmt.Fprintf(w, "### %s\n\n", sec.title)
		if sec.intro != "" {
			fmt.Fprintf(w, "%s\n\n", sec.intro)
		}
		for _, v := range sec.rows {
			meaning := v.meaning
			if v.Secret() {
				meaning += " Or `" + v.Name + "_FILE`." // the page's introduction says what that is
			}
			fmt.Fprintf(w, "- `%s` (%s): %s\n", v.Name, v.unset, meaning)
		}
		fmt.Fprintln(w)
	}
}
