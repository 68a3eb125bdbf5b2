package command

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The README stays one that people read to its end, and every page says whom it is for.
func TestDocsAreForSomebody(t *testing.T) {
	readme, err := os.ReadFile(root + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(readme), "\n"); n > 150 {
		t.Errorf("the README has %d lines, more than 150", n)
	}
	pages, err := filepath.Glob(root + "docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatal(pages, err)
	}
	index, err := os.ReadFile(root + "docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		name := filepath.Base(page)
		if name == "README.md" {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, _ := strings.Cut(string(text), "\n\n"); !strings.HasPrefix(rest, "For those ") {
			t.Errorf("docs/%s does not begin with whom it is for", name)
		}
		if !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

// docs/operations.md lists every metric, and docs/security.md every fuzz target with its package.
func TestListsInDocsAreComplete(t *testing.T) {
	for _, list := range []struct {
		page, folder, name string // name has one group: what the page has to name
		least              int
	}{
		{"docs/operations.md", "internal/admin", `[^)]"(usher_\w+)",`, 25},
		{"docs/security.md", ".", `\nfunc (Fuzz\w+)\(`, 15},
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
				row := regexp.MustCompile("(?m)^\\| (`\\w+`, )*`" + string(m[1]) + "`.*$").Find(page)
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
