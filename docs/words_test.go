package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// An unclear word or construction, and what to write instead.
type unclear struct{ pattern, instead string }

// Words and constructions that readers had to read twice. The list is kept by hand: add what
// you stumble over.
var unclearEverywhere = []unclear{
	{`\b(could|can|can't|cannot|to) be had\b`, "cannot get"},
	{`\b[Hh]eed(s|ed)?\b`, "use, respect"},
	{`\bmend(s|ed)?\b`, "fix"},
	{`\bsees? to (it|that)\b`, "checks, makes sure"},
	{`\b[Ww]hoever\b`, "anybody who"},
	{`\b(for|to|of|by|with) who\b`, "name them: callers, readers, the inbox"},
	{`\b(would else|else would)\b`, "otherwise"},
	{`\basked was\b`, "usher tried"},
	{`\bls has\b`, "see 'usher inbox ls'"},
	{`\btells what there is\b`, "Run 'usher -h' for help."},
	{`\bno usher (could|can)\b`, "cannot reach usher"},
	{`\b(it|that|this|which|") is no (id|socket|object|schema|answer|file)\b`, "is not a"},
	{`\bnobody (speaks|listens)\b`, "say what does happen there"},
	{`\bmust be there\b`, "create … first"},
	{`\b(that|which) is there\b`, "that exists"},
	{`\bis there twice\b`, "occurs twice"},
	{`\bwhat there is\b`, "name it"},
	{`\b(break|breaks|broke|broken) off\b`, "ended too early, cancelled"},
	{`\bof late\b`, "recently"},
	{`\bat the moment\b[^.]`, "right now"}, // the sentence for a buyer ends with it
	{`\bgiven out\b`, "issued"},
	{`\bWho (does|has|is|wants|comes|waits|asks|needs|keeps|sends|reads|gets)\b[^?]*$`, "begin with a noun"},
	{`\bOf your settings\b`, "subject, verb, object"},
	{`\b[Hh](ave|as|ad) (usher|it|them|(the|an?|each|every|two|one|half an?)( running)? [a-z]+) (do|write|read|sends?|sent|ask|take|taken|check|show|shown|keep|answer|deliver|go|wait|be)\b`, "lets, makes, asks; or say who does it"},
	{`\b(is|are|was|were|be) told (of|by|that|to|what|why|when|otherwise|\d)`, "gets, is called with, logs"},
	{`\btold of\b`, "knows, mentions"},
	{`\bas (it|they) (was|were) last (read|seen|written)\b`, "the last state that usher has read"},
	{`\bby one after the other\b`, "one at a time"},
	{`\b(hitherto|thereof|hence|whilst|lest|anyhow)\b`, "a common word"},
}

// Words of the code, which its comments explain. Users do not know them, except as names: in
// SQL, and between backticks.
var unclearToUsers = []unclear{
	{`\blanes?\b`, "the tenant's queue"},
}

// What is a name, and not a word.
var names = regexp.MustCompile("`[^`]*`|\\b[a-z]\\.\\w+|\\{\\w+\\}|\\b(UPDATE|FROM|INTO|JOIN|TABLE|INDEX|ON) \\S+")

// Where they are not looked for: generated files, and pages for those who change usher.
var spared = []string{"docs/architecture.md", "docs/CONTRIBUTING.md", "bench/"}

func TestPlainWords(t *testing.T) {
	patterns := make(map[unclear]*regexp.Regexp)
	for _, u := range slices.Concat(unclearEverywhere, unclearToUsers) {
		patterns[u] = regexp.MustCompile(u.pattern)
	}
	looked := 0
	look := func(where, text string, lists ...[]unclear) {
		looked++
		text = names.ReplaceAllString(text, "")
		for _, u := range slices.Concat(lists...) {
			if found := patterns[u].FindString(text); found != "" {
				t.Errorf("%s: %q: better: %s", where, found, u.instead)
			}
		}
	}
	forUsers := func(where, text string) { look(where, text, unclearEverywhere, unclearToUsers) }
	inComments := func(where, text string) { look(where, text, unclearEverywhere) }
	for _, top := range []string{"README.md", "docs", "examples", "deploy", "bench", "main.go", "proxy", "tokens", "webhookgate", "internal"} {
		err := filepath.WalkDir(root+top, func(path string, d fs.DirEntry, err error) error {
			name := filepath.ToSlash(strings.TrimPrefix(path, root))
			if isBelow(name, spared) {
				return err
			}
			switch {
			case err != nil || d.IsDir():
			case strings.HasSuffix(name, ".md"):
				lookAtPage(t, path, name, forUsers)
			case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
				lookAtCode(t, path, name, forUsers, inComments)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if looked < 4500 {
		t.Errorf("looked at %d lines, strings and comments only", looked)
	}
}

func isBelow(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
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

// lookAtCode looks at the string literals of a file (errors, log messages, help), and at its
// comments.
func lookAtCode(t *testing.T, path, name string, literals, comments func(where, text string)) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Comments {
		comments(name+":"+strconv.Itoa(files.Position(c.Pos()).Line), strings.Join(strings.Fields(c.Text()), " "))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(text, " ") {
				literals(name+":"+strconv.Itoa(files.Position(lit.Pos()).Line), text)
			}
		}
		return true
	})
}
