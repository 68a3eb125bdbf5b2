// Package docs has tests only: what the README and these pages say is true, complete and plain.
package docs

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"usher/internal/settings"
)

// root is where the module is.
const root = "../"

// How many words a page may have. A page that needs more has said something twice, or belongs somewhere else.
var budgets = map[string]int{
	"README.md": 800, "bench/RESULTS.md": 1080, "docs/operations.md": 4660, "docs/architecture.md": 3140,
	"docs/SECURITY.md": 1810, "docs/reference.md": 3260, "docs/reliability.md": 1460,
	"docs/connect.md": 620, "docs/uses.md": 2350, "docs/receivers.md": 880, "docs/entitlements.md": 1650, "docs/evidence.md": 1680,
}

// budgetOfTheRest is for all other pages in docs together, and budgetOfAll for the README and all of docs.
const budgetOfTheRest, budgetOfAll = 1780, 23800

// Every page is within its budget, and listed.
func TestPagesAreShort(t *testing.T) {
	pages, err := filepath.Glob(root + "docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatal(pages, err)
	}
	index, err := os.ReadFile(root + "docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	rest, all := 0, 0
	for _, page := range append(pages, root+"README.md", root+"bench/RESULTS.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		words, name := len(strings.Fields(string(text))), strings.TrimPrefix(page, root)
		if name != "bench/RESULTS.md" {
			all += words
		}
		switch budget := budgets[name]; {
		case budget == 0:
			rest += words
		case words > budget:
			t.Errorf("%s has %d words, more than %d", name, words, budget)
		}
		if base := filepath.Base(page); base != "README.md" && !strings.Contains(string(index), base+")") {
			t.Errorf("docs/README.md does not list %s", base)
		}
	}
	if rest > budgetOfTheRest {
		t.Errorf("the pages without a budget of their own have %d words, more than %d", rest, budgetOfTheRest)
	}
	if all > budgetOfAll {
		t.Errorf("the README and docs have %d words, more than %d", all, budgetOfAll)
	}
}

// docs/reference.md lists every metric, and docs/evidence.md every fuzz target with its package.
func TestListsInDocsAreComplete(t *testing.T) {
	for _, list := range []struct {
		page, folder, name string // name has one group: what the page has to name
		least              int
	}{
		{"docs/reference.md", "internal/admin", `[^)]"(usher_\w+)",`, 25},
		{"docs/evidence.md", ".", `\nfunc (Fuzz\w+)\(`, 15},
	} {
		page, err := os.ReadFile(root + list.page)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		err = filepath.WalkDir(root+list.folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			code, err := os.ReadFile(path)
			for _, m := range regexp.MustCompile(list.name).FindAllSubmatch(code, -1) {
				found++
				row := regexp.MustCompile("(?m)^\\| (`[^`]+`, )*`" + string(m[1]) + "(\\{[a-z,]+\\})?`.*$").Find(page)
				folder := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), root))
				if row == nil || strings.HasPrefix(string(m[1]), "Fuzz") && !strings.Contains(string(row), "`"+folder+"`") {
					t.Errorf("%s has no row for %s of %s", list.page, m[1], folder)
				}
			}
			return err
		})
		if err != nil || found < list.least {
			t.Errorf("%s: only %d found: %v", list.folder, found, err)
		}
	}
}

// Every setting that a page or an example names exists.
func TestNamesInDocsAndExamples(t *testing.T) {
	names := regexp.MustCompile(`USHER_[A-Za-z0-9_]*[A-Za-z0-9]`)
	// What 'usher exec' sets, and what tests read.
	others := []string{"USHER_URL", "USHER_TEST_POSTGRES", "USHER_TEST_THOROUGH"}
	files := 0
	for _, file := range documents(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		files++
		for _, at := range names.FindAllIndex(content, -1) {
			name := string(content[at[0]:at[1]])
			if bytes.HasPrefix(content[at[1]:], []byte("_")) {
				continue // USHER_PORTS_0_…: the beginning of several
			}
			if !slices.Contains(others, name) && !settings.Known(name) {
				t.Errorf("%s names %s, which is not a setting", file, name)
			}
		}
	}
	if files < 10 {
		t.Errorf("only %d files looked at", files)
	}
}

// documents are the files in which people read what settings there are.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{root + "README.md", root + "Dockerfile"}
	for _, dir := range []string{"deploy", "examples", "docs"} {
		err := filepath.WalkDir(root+dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && filepath.Ext(path) != ".go" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
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
	for _, name := range []string{"evidence.md"} {
		doc, err := os.ReadFile(name)
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

// docs/CONTRIBUTING.md says of every direct dependency why it is there.
func TestDependenciesAreDocumented(t *testing.T) {
	mod, err := os.ReadFile(root + "go.mod")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	ci, err := os.ReadFile(root + ".ci/tools/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	direct := regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1)
	tools := regexp.MustCompile(`(?m)^(?:tool |\t)(\S+/cmd/\S+)$`).FindAllStringSubmatch(string(ci), -1)
	if len(direct) == 0 || len(tools) < 3 || regexp.MustCompile(`(?m)^tool\b`).Match(mod) {
		t.Fatalf("%d direct dependencies; %d tools in .ci/tools/go.mod, where all of them are", len(direct), len(tools))
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
		t.Errorf("%s is listed, but in neither go.mod", name)
	}
}
