package command

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
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
	for _, v := range variables() {
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
	const begin, end = "<!-- settings: go test ./internal/command -run TestReference -update -->\n", "<!-- end of settings -->"
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
		t.Error("docs/reference.md does not have the settings as they are: go test ./internal/command -run TestReference -update")
	}
	if intro := strings.Join(strings.Fields(before), " "); !strings.Contains(intro, settingsIntro) {
		t.Errorf("docs/reference.md does not begin its settings as help does: %s", settingsIntro)
	}
}

func printed(t *testing.T, code int, args ...string) string {
	t.Helper()
	p := start(t, nil, args...)
	<-p.ended
	if p.code != code {
		t.Errorf("usher %s: exit code %d, want %d: %s", strings.Join(args, " "), p.code, code, p.stderr.String())
	}
	return p.stdout.String() + p.stderr.String()
}

// Every command has its help, in three ways, and fits a terminal.
func TestHelp(t *testing.T) {
	commands := []string{"demo", "exec", "check", "healthcheck", "inbox", "entitlements", "version", "help", "serve"}
	if len(commands) != len(commandHelp) {
		t.Errorf("help on %d commands, but there are %d", len(commandHelp), len(commands))
	}
	overview := printed(t, 0, "help")
	for _, name := range commands {
		help := printed(t, 0, "help", name)
		if !strings.Contains(help, "usher "+name) && name != "serve" {
			t.Errorf("help on %s: %s", name, help)
		}
		for _, flag := range []string{"-h", "-help", "--help"} {
			if got := printed(t, 0, name, flag); got != help {
				t.Errorf("usher %s %s differs from usher help %s: %s", name, flag, name, got)
			}
		}
		if !strings.Contains(overview, "usher "+name) && name != "serve" {
			t.Errorf("usher help does not list %s", name)
		}
		if name != "inbox" { // which has long lines of its own
			fits(t, help)
		}
	}
	fits(t, overview)
	for args, want := range map[string]string{
		"help inbx": "did you mean inbox?", "help a b": "takes one command", "help settings nonsense": `no setting is about "nonsense"`,
	} {
		if got := printed(t, 2, strings.Fields(args)...); !strings.Contains(got, want) || !strings.Contains(got, "Run 'usher -h' for help.") {
			t.Errorf("usher %s: %s", args, got)
		}
	}
}

func TestHelpOnSettings(t *testing.T) {
	all := printed(t, 0, "help", "settings")
	fits(t, all)
	for _, v := range variables() {
		entry := "\n  " + v.Name + "  (default: "
		if v.Default != "" {
			entry += v.Default + ")\n"
		}
		if !strings.Contains(all, entry) {
			t.Errorf("no %q", entry)
		}
	}
	some := printed(t, 0, "help", "settings", "Dedup")
	if !strings.Contains(some, "USHER_WEBHOOK_DEDUP_WINDOW") || strings.Contains(some, "USHER_LOG_LEVEL") {
		t.Errorf("about dedup: %s", some)
	}
}

// fits: on a terminal of 80 columns.
func fits(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("too long: %s", line)
		}
	}
}
