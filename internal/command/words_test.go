package command

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Words and constructions that users had to read twice, with what to write instead. It is
// kept by hand: add what you stumble over.
var unclear = []struct{ pattern, instead string }{
	{`\b(could|can|can't|to) be had\b`, "cannot get"},
	{`\b[Hh]eed(s|ed)?\b`, "use, respect"},
	{`\bmend(s|ed)?\b`, "fix"},
	{`\bsees? to it\b`, "checks, makes sure"},
	{`\bwhoever\b`, "anybody who"},
	{`\bWhoever\b`, "anybody who"},
	{`\blanes?\b`, "the tenant's queue"},
	{`\basked was\b`, "usher tried"},
	{`\bls has\b`, "see 'usher inbox ls'"},
	{`\btells what there is\b`, "Run 'usher -h' for help."},
	{`\bno usher (could|can)\b`, "cannot reach usher"},
	{`\bis no (id|socket|object|schema|answer|file)\b`, "is not a"},
	{`\bnobody (speaks|listens)\b`, "say what does happen there"},
	{`\bmust be there\b`, "create … first"},
	{`\bthat is there\b`, "that exists"},
	{`\bbroke off\b`, "ended too early"},
	{`\bof late\b`, "recently"},
	{`\bat the moment\b`, "right now"},
	{`\bgiven out\b`, "issued"},
	{`\bWho (does|has|is|wants|comes)\b.*[^?]$`, "begin with a noun"},
	{`\bOf your settings\b`, "subject, verb, object"},
	{`\b(hitherto|thereof|hence|whilst|lest)\b`, "a common word"},
}

// Where they are not looked for: what is written for those who change usher and know its
// words, and generated tables.
var spared = []string{"docs/architecture.md", "docs/CONTRIBUTING.md", "docs/demo", "docs/recording", "docs/screenshots",
	// Not read through yet:
	"internal/e2e/", "internal/sandbox/", "internal/wire/", "internal/peer/"}

func TestPlainWords(t *testing.T) {
	patterns := make([]*regexp.Regexp, len(unclear))
	for i, u := range unclear {
		patterns[i] = regexp.MustCompile(u.pattern)
	}
	looked := 0
	look := func(where, text string) {
		looked++
		for i, p := range patterns {
			if found := p.FindString(text); found != "" {
				t.Errorf("%s: %q: better %s", where, found, unclear[i].instead)
			}
		}
	}
	for _, top := range []string{"README.md", "docs", "examples/README.md", "proxy", "tokens", "webhookgate", "internal"} {
		err := filepath.WalkDir(root+top, func(path string, d fs.DirEntry, err error) error {
			name := filepath.ToSlash(strings.TrimPrefix(path, root))
			for _, s := range spared {
				if strings.HasPrefix(name, s) {
					return err
				}
			}
			switch {
			case err != nil || d.IsDir():
			case strings.HasSuffix(name, ".md"):
				lookAtPage(t, path, name, look)
			case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
				lookAtStrings(t, path, name, look)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if looked < 1500 {
		t.Errorf("looked at %d lines and strings only", looked)
	}
}

func lookAtPage(t *testing.T, path, name string, look func(where, text string)) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(page)) {
		n++
		look(name+":"+strconv.Itoa(n), strings.TrimRight(line, "\n"))
	}
}

// lookAtStrings looks at the string literals of a file: errors, log messages, help.
func lookAtStrings(t *testing.T, path, name string, look func(where, text string)) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(text, " ") {
				look(name+":"+strconv.Itoa(files.Position(lit.Pos()).Line), text)
			}
		}
		return true
	})
}
