// Package docs has tests only: what the README and these pages say is true, complete and plain.
package docs

import (
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

// How many words a page may have, and all of them together. A page that needs more has said something twice, or belongs
// somewhere else.
var budgets = map[string]int{
	"README.md": 810, "docs/connect.md": 555, "docs/uses.md": 1600, "docs/receivers.md": 800, "docs/entitlements.md": 1275,
	"docs/reference.md": 2300, "docs/operations.md": 3050, "docs/reliability.md": 680, "docs/SECURITY.md": 960,
	"docs/architecture.md": 1270, "docs/CONTRIBUTING.md": 680, "deploy/README.md": 530, "deploy/try/README.md": 100,
	"examples/README.md": 160, "bench/RESULTS.md": 355,
}

const budgetOfAll = 15000

// Every page is within its budget, and the README, or a page that it names, leads to it.
func TestPagesAreShort(t *testing.T) {
	all := 0
	index := read(t, root+"README.md") + read(t, root+"deploy/README.md")
	for name, text := range pages(t) {
		words := len(strings.Fields(text))
		if all += words; words > budgets[name] {
			t.Errorf("%s has %d words, more than %d", name, words, budgets[name])
		}
		if link := strings.TrimPrefix(name, "deploy/"); name != "README.md" && !strings.Contains(index, "("+name) && !strings.Contains(index, "("+link) {
			t.Errorf("nothing leads to %s", name)
		}
	}
	if all > budgetOfAll {
		t.Errorf("all pages have %d words, more than %d", all, budgetOfAll)
	}
}

// Every setting that a page or an example names exists.
func TestNamesInDocsAndExamples(t *testing.T) {
	names := regexp.MustCompile(`USHER_[A-Za-z0-9_]*[A-Za-z0-9]\b(_…)?`)
	others := []string{"USHER_URL", "USHER_TEST_POSTGRES"} // what 'usher exec' sets, and what tests read
	for _, path := range append(files(t, nil, "deploy", "examples", "docs"), root+"README.md", root+"Dockerfile") {
		if filepath.Ext(path) == ".go" {
			continue
		}
		for _, name := range names.FindAllString(read(t, path), -1) {
			if !strings.HasSuffix(name, "_…") && !slices.Contains(others, name) && !settings.Known(name) {
				t.Errorf("%s names %s, which is not a setting", path, name)
			}
		}
	}
}

// docs/CONTRIBUTING.md says of every direct dependency why it is there.
func TestDependenciesAreDocumented(t *testing.T) {
	direct := found(`(?m)^\t(\S+) v\S+$`, read(t, root+"go.mod"))
	tools := found(`(?m)^(?:tool |\t)(\S+/cmd/\S+)$`, read(t, root+".ci/tools/go.mod"))
	listed := found("(?m)^- `(\\S+)` \\(", read(t, "CONTRIBUTING.md"))
	if len(direct) == 0 || len(tools) < 3 {
		t.Fatalf("%d direct dependencies, %d tools", len(direct), len(tools))
	}
	if want := slices.Sorted(slices.Values(append(direct, tools...))); !slices.Equal(listed, want) {
		t.Errorf("listed are\n%q, but there are\n%q", listed, want)
	}
}

// files returns the files below these folders that have one of these endings, or any.
func files(t *testing.T, endings []string, folders ...string) []string {
	t.Helper()
	var all []string
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".git") {
				return fs.SkipDir
			}
			if err == nil && d.Type().IsRegular() && (endings == nil || slices.Contains(endings, filepath.Ext(path))) {
				all = append(all, filepath.ToSlash(path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// goFiles returns the files of code below these folders, without tests.
func goFiles(t *testing.T, folders ...string) []string {
	t.Helper()
	return slices.DeleteFunc(files(t, []string{".go"}, folders...), func(path string) bool { return strings.HasSuffix(path, "_test.go") })
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// pages returns the text of every page, by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range files(t, []string{".md"}, ".") {
		all[strings.TrimPrefix(path, root)] = read(t, path)
	}
	if len(all) < 10 {
		t.Fatalf("only %d pages", len(all))
	}
	return all
}

// code returns all code below these folders, without tests.
func code(t *testing.T, folders ...string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range goFiles(t, folders...) {
		all.WriteString(read(t, path))
	}
	return all.String()
}
