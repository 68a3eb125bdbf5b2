package docs

import (
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The picture of the house in docs/architecture.md has every room, and none that is not there.
func TestPictureOfTheHouse(t *testing.T) {
	_, picture, _ := strings.Cut(read(t, "architecture.md"), "## The house\n\n```\n")
	picture, _, _ = strings.Cut(picture, "```")
	var drawn, there []string
	for _, line := range strings.Split(picture, "\n") {
		for _, m := range regexp.MustCompile(`(\S+)/(?:\s|$)`).FindAllStringSubmatch(line, -1) {
			drawn = append(drawn, m[1])
		}
	}
	for _, parent := range []string{"", "internal/"} {
		folders, err := os.ReadDir(root + parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range folders {
			if f.IsDir() && f.Name() != "internal" && f.Name() != "docs" && len(goFiles(t, parent+f.Name())) > 0 {
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

// rows are all rooms, from top to bottom. A room may import rooms of the rows below its own. It imports none above, and
// not its neighbours either.
var rows = [][]string{
	{"bench", "deploy", "docs", "examples", "internal/e2e"},
	{"internal/testkit"},
	{"main.go"},
	{"internal/command"},
	{"internal/demo"},
	{"internal/job", "internal/sandbox", "internal/serve"},
	{"internal/admin", "internal/catchup", "internal/settings"}, // settings fills the configurations of those below
	{"internal/view"},
	{"internal/entitlements", "internal/inbox", "internal/outbound"},
	{"internal/lane"}, // it decides; it knows no database and no courier
	{"proxy", "webhookgate"},
	{"internal/receiver", "internal/snapshot", "tokens"},
	{"internal/content", "internal/guard", "internal/peer", "internal/sdnotify", "internal/signature", "internal/wire"},
	{"internal/clock", "internal/logs", "internal/secret"},
	{"internal/filelock", "internal/text", "internal/version"},
}

// strangers do not know each other, although one is above the other: calls and webhooks have nothing in common.
var strangers = map[string][]string{
	"internal/job":          {"internal/admin", "internal/entitlements", "internal/inbox", "internal/lane", "internal/settings", "webhookgate"},
	"internal/outbound":     {"webhookgate"},
	"internal/catchup":      {"internal/entitlements", "proxy", "webhookgate"},
	"internal/admin":        {"internal/outbound", "proxy"},
	"internal/entitlements": {"proxy", "tokens"},
	"internal/inbox":        {"proxy", "tokens"},
	"internal/lane":         {"proxy", "tokens"},
	"webhookgate":           {"tokens"},
}

// Imports run one way, in every room.
func TestImportsRunOneWay(t *testing.T) {
	// roomOf returns the room that a path is in, and its row.
	roomOf := func(path string) (room string, row int) {
		for n, rooms := range rows {
			for _, r := range rooms {
				if path == r || strings.HasPrefix(path, r+"/") {
					return r, n
				}
			}
		}
		return "", -1
	}
	seen := make(map[string]bool)
	for _, path := range goFiles(t, ".") {
		name := strings.TrimPrefix(path, root)
		room, row := roomOf(name)
		if seen[room] = true; room == "" {
			t.Errorf("%s is in no room", name)
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			imported, ours := strings.CutPrefix(imported, "usher/")
			other, below := roomOf(imported)
			if ours && other != room && (below <= row || slices.Contains(strangers[room], other)) {
				t.Errorf("%s imports %s", name, imported)
			}
		}
	}
	for _, rooms := range rows {
		for _, room := range rooms {
			if !seen[room] && !slices.Contains(rows[0], room) { // those have tests alone
				t.Errorf("%s has no code", room)
			}
		}
	}
}
