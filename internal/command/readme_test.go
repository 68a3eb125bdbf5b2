package command

import (
	"os"
	"path/filepath"
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
