package docs

import (
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

// The picture of the house in docs/architecture.md has every room, and none that is not there.
func TestPictureOfTheHouse(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, picture, _ := strings.Cut(string(page), "## The house\n\n```\n")
	picture, _, _ = strings.Cut(picture, "```")
	var drawn, there []string
	for _, line := range strings.Split(picture, "\n") {
		rooms, _, _ := strings.Cut(line, "  ")
		for _, m := range regexp.MustCompile(`(\S+)/(?: |$)`).FindAllStringSubmatch(rooms, -1) {
			drawn = append(drawn, m[1])
		}
	}
	for _, parent := range []string{"", "internal/"} {
		folders, err := os.ReadDir(root + parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range folders {
			if f.IsDir() && f.Name() != "internal" && f.Name() != "docs" && len(goFiles(t, root+parent+f.Name())) > 0 {
				there = append(there, parent+f.Name())
			}
		}
	}
	for _, room := range there {
		if !slices.Contains(drawn, room) {
			t.Errorf("the picture has no %s/", room)
		}
	}
	if len(there) < 20 {
		t.Errorf("only %q were found", there)
	}
	for _, room := range drawn {
		if _, err := os.Stat(root + room); err != nil {
			t.Errorf("the picture has %s/, which is not there", room)
		}
	}
}

// Imports run one way.
func TestImportsRunOneWay(t *testing.T) {
	for room, never := range map[string]string{
		"proxy":             `webhookgate|internal/(admin|command|demo|entitlements|inbox|job|outbound|serve|settings)`,
		"tokens":            `webhookgate|proxy|internal/(admin|command|demo|entitlements|inbox|job|outbound|serve|settings)`,
		"webhookgate":       `tokens|proxy|internal/(admin|command|demo|entitlements|inbox|job|outbound|serve|settings)`,
		"internal/inbox":    `tokens|proxy|internal/(admin|command|demo|job|outbound|serve|settings)`,
		"internal/admin":    `proxy|internal/(command|demo|job|outbound|serve|settings)`,
		"internal/settings": `internal/(admin|command|demo|job|outbound|serve)`,
		"internal/job":      `internal/(admin|command|demo|serve)`,
		"internal/serve":    `internal/(command|demo|job)`,
		"internal/demo":     `internal/command`,
	} {
		forbidden := regexp.MustCompile(`^usher/(` + never + `)(/|$)`)
		files := goFiles(t, root+room)
		if len(files) == 0 {
			t.Errorf("%s has no code", room)
		}
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range file.Imports {
				if name, _ := strconv.Unquote(spec.Path.Value); forbidden.MatchString(name) {
					t.Errorf("%s imports %s", strings.TrimPrefix(path, root), name)
				}
			}
		}
	}
}

// goFiles are the files of a folder and those below it, without tests.
func goFiles(t *testing.T, folder string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
