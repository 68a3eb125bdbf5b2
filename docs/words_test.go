package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
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
	look := func(path string, line int, text string, lists ...[]unclear) {
		looked++
		text = names.ReplaceAllString(text, "")
		for _, u := range slices.Concat(lists...) {
			if found := patterns[u].FindString(text); found != "" {
				t.Errorf("%s:%d: %q: better: %s", path, line, found, u.instead)
			}
		}
	}
	for _, path := range append(files(t, []string{".md"}, "."), goFiles(t, ".")...) {
		if slices.ContainsFunc(spared, func(p string) bool { return strings.HasPrefix(path, root+p) }) {
			continue
		}
		if strings.HasSuffix(path, ".md") {
			for n, line := range strings.Split(read(t, path), "\n") {
				look(path, n+1, line, unclearEverywhere, unclearToUsers)
			}
			continue
		}
		// Of code its comments, and the literals that users read: errors, log messages, help.
		positions := token.NewFileSet()
		file, err := parser.ParseFile(positions, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range file.Comments {
			look(path, positions.Position(c.Pos()).Line, strings.Join(strings.Fields(c.Text()), " "), unclearEverywhere)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(text, " ") {
					look(path, positions.Position(lit.Pos()).Line, text, unclearEverywhere, unclearToUsers)
				}
			}
			return true
		})
	}
	if looked < 4500 {
		t.Errorf("looked at %d lines, strings and comments only", looked)
	}
}
