package admin

import (
	"context"
	"flag"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"usher/internal/entitlements"
	"usher/internal/lane/state"
)

var update = flag.Bool("update", false, "write the table of acts into docs/api.md")

// docs/api.md has the table of acts as it is in Acts.
func TestAPIDocumentHasTheActs(t *testing.T) {
	const file, begin, end = "../../docs/api.md", "<!-- acts: go test ./internal/admin -run TestAPIDocumentHasTheActs -update -->\n", "<!-- end of acts -->"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(doc), begin)
	got, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatal("docs/api.md has no place for the acts")
	}
	want := "\n| call | answer |\n|---|---|\n"
	for _, a := range Acts {
		for row := range slices.Chunk(a.doc, 2) {
			want += "| `" + row[0] + "` | " + row[1] + " |\n"
		}
	}
	if want += "\n"; *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != want {
		t.Error("docs/api.md does not have the acts as they are: go test ./internal/admin -run TestAPIDocumentHasTheActs -update")
	}
}

// docs/api.md lists exactly the calls of the API, and every status that they answer with.
func TestAPIDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	var documented, there []string
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:GET|POST) /[^`?]*)` \\|").FindAllStringSubmatch(doc, -1) {
		documented = append(documented, m[1])
	}
	cfg := port(nil)
	cfg.Entitlements = func(context.Context, string, *string) (a entitlements.Answer, err error) { return }
	for _, to := range New(cfg).routes {
		path := strings.ReplaceAll(to.path, "{id}", "ID")
		if !strings.HasPrefix(path, "/api/") && !strings.HasSuffix(path, "/payload") {
			continue
		}
		if to.read != nil {
			there = append(there, "GET "+path)
		}
		if to.act != nil {
			there = append(there, "POST "+path)
		}
	}
	slices.Sort(documented)
	slices.Sort(there)
	if !slices.Equal(documented, there) {
		t.Errorf("documented:\n%s\nthere:\n%s", strings.Join(documented, "\n"), strings.Join(there, "\n"))
	}
	quoted := func(names []string) string { return "(`" + strings.Join(names, "`, `") + "`)" }
	if row := "| `state` | a state in the inbox " + quoted(state.Names()) + ", or a decision " + quoted(decisionOutcomes) + " |"; !strings.Contains(doc, row) {
		t.Errorf("not documented: %s", row)
	}
	_, statuses, _ := strings.Cut(doc, "## What is not a 200")
	for _, status := range []int{400, 401, 403, 404, 405, 409, 413, 421, 500, 503} {
		if !strings.Contains(statuses, "\n| "+strconv.Itoa(status)+" |") {
			t.Errorf("%d is not documented", status)
		}
	}
	// The code uses no status that is not documented.
	source := ""
	for _, file := range []string{"admin.go", "answer.go", "acts.go", "act.go", "webhookacts.go", "backup.go", "actions.go", "webhooks.go", "tenant.go"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source += string(b)
	}
	known := map[string]bool{"OK": true, "BadRequest": true, "Unauthorized": true, "Forbidden": true, "NotFound": true, "MethodNotAllowed": true,
		"Conflict": true, "RequestEntityTooLarge": true, "MisdirectedRequest": true, "InternalServerError": true, "ServiceUnavailable": true, "Text": true,
		"SeeOther": true} // of pages
	for _, m := range regexp.MustCompile(`http\.Status(\w+)`).FindAllStringSubmatch(source, -1) {
		if !known[m[1]] {
			t.Errorf("http.Status%s is not among those documented", m[1])
		}
	}
}
